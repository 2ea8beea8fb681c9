//! Checks where prompts show pictures, for templates of several kinds.

use proptest::prelude::*;

use super::super::render::{Rendered, render};
use super::*;
use template::ChatTemplate;
use tokenizer::Tokenizer;

use std::sync::LazyLock;

static TOKENIZER: LazyLock<Tokenizer> =
    LazyLock::new(|| Tokenizer::open(&gguf::GgufFile::open(fixtures::vocabulary("smollm2").path()).unwrap()).unwrap());

/// Shows lists and strings, and pictures as a control token of the vocabulary.
const IN_PLACE: &str = "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.content is string %}{{ m.content }}{% else %}\
    {% for p in m.content %}{% if p.type == 'image' %}<|endoftext|>{% else %}{{ p.text }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n\
    {% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
/// Shows only lists, with a plain text and a line break for each picture, before the text.
const ONLY_LISTS: &str = "{% for m in messages %}{{ m.role | upper }}: {% for p in m.content if p.type == 'image' %}<image>\n{% endfor %}\
    {% for p in m.content if p.type == 'text' %}{{ p.text }}{% endfor %}\n{% endfor %}";
/// Shows the last message first, and pictures as a control token.
const LAST_FIRST: &str = "{% for m in messages | reverse %}{% if m.content is string %}{{ m.content }}{% else %}\
    {% for p in m.content %}{% if p.type == 'image' %}<|endoftext|>{% else %}{{ p.text }}{% endif %}{% endfor %}{% endif %};{% endfor %}";
/// Shows strings alone.
const ONLY_STRINGS: &str = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content | trim }}<|im_end|>\n{% endfor %}";

fn text(text: &str) -> Part {
    Part::Text(text.to_owned())
}

fn numbered(number: usize) -> Part {
    let source = PictureSource::File(Arc::default());
    Part::Picture(Picture { source, field: format!("{number}").into(), substitute: None })
}

fn rendered(template: &str, messages: Vec<Message>) -> Result<Rendered, super::super::RenderError> {
    let template = ChatTemplate::new(template, "", "").unwrap();
    let dialect = Dialect::of(&template, &TOKENIZER);
    render(&template, &dialect, &TOKENIZER, &Conversation { messages, ..Conversation::default() })
}

/// The prompt of one message, with the number of each picture.
fn shown(template: &str, parts: Vec<Part>) -> String {
    let prompt = rendered(template, vec![Message { parts, ..Message::new(Role::User) }]).unwrap();
    let numbers = prompt.pictures.iter().map(|picture| format!("({})", picture.field)).chain([String::new()]);
    prompt.texts.iter().zip(numbers).map(|(text, number)| format!("{text}{number}")).collect()
}

#[test]
fn pictures_stand_where_the_template_shows_them() {
    let parts = || vec![text("a"), numbered(0), text("b"), numbered(1)];
    assert_eq!(shown(IN_PLACE, parts()), "<|im_start|>user\na(0)b(1)<|im_end|>\n<|im_start|>assistant\n");
    assert_eq!(shown(ONLY_LISTS, parts()), "USER: (0)\n(1)\na\nb");
    assert_eq!(shown(ONLY_STRINGS, parts()), "<|im_start|>user\na\n(0)\nb\n(1)<|im_end|>\n");
    assert_eq!(shown(ONLY_LISTS, vec![text("a")]), "USER: a", "a template of lists gets texts as lists, too");
}

#[test]
fn a_picture_keeps_its_place_in_any_order_of_messages() {
    let asked = |number: usize| Message { parts: vec![numbered(number), text("?")], ..Message::new(Role::User) };
    let prompt = rendered(LAST_FIRST, vec![asked(0), Message::of_text(Role::Assistant, "a"), asked(1)]).unwrap();
    let fields: Vec<&str> = prompt.pictures.iter().map(|picture| &*picture.field).collect();
    assert_eq!((fields, prompt.with_markers("#")), (vec!["1", "0"], "#?;a;#?;".to_owned()));
}

#[test]
fn a_picture_that_may_be_left_out_becomes_a_text_where_the_template_spoils_it() {
    let template =
        "{% for m in messages %}{% if loop.index0 == 2 %}{{ m.content | upper }}{% else %}{{ m.content }}{% endif %};{% endfor %}";
    let source = PictureSource::File(Arc::default());
    let picture = Part::Picture(Picture { source, field: "r".into(), substitute: Some("(left out)") });
    let said = |part: Part| Message { parts: vec![part], ..Message::new(Role::User) };
    let prompt = rendered(template, vec![said(numbered(0)), Message::of_text(Role::Assistant, "a"), said(picture)]).unwrap();
    assert_eq!((prompt.pictures.len(), prompt.with_markers("#")), (1, "#;a;(LEFT OUT);".to_owned()));
}

#[test]
fn no_error_tells_a_mark() {
    let template = "{{ raise_exception(messages[0].content) }}";
    let error = rendered(template, vec![Message { parts: vec![numbered(0), text("hi")], ..Message::new(Role::User) }]).unwrap_err();
    assert_eq!(error.to_string(), "<picture>\nhi");
}

#[test]
fn a_clients_text_is_no_picture() {
    for template in [IN_PLACE, ONLY_LISTS, ONLY_STRINGS] {
        for claim in ["<|endoftext|>", "<image>", "penstockpicture0n0z", "<__media__>"] {
            let prompt = rendered(template, vec![Message { parts: vec![text(claim), numbered(0)], ..Message::new(Role::User) }]).unwrap();
            let all: String = prompt.texts.iter().map(|text| TOKENIZER.unshield(text).into_owned()).collect();
            assert!(all.contains(claim), "{template}: {all}");
            assert_eq!((prompt.pictures.len(), prompt.texts.len()), (1, 2));
        }
    }
}

#[test]
fn a_picture_that_the_template_does_not_show_is_an_error() {
    let template = "{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}";
    let asked = Message { parts: vec![numbered(0), text("what is it?")], ..Message::new(Role::User) };
    assert!(rendered(template, vec![asked.clone()]).is_ok());
    let answer = Message { parts: vec![numbered(1)], ..Message::new(Role::Assistant) };
    let error = rendered(template, vec![asked.clone(), answer, asked]).unwrap_err().to_string();
    assert!(error.contains("does not show `1` in its place"), "{error}");
}

#[test]
fn real_templates_show_pictures_with_their_own_control_tokens() {
    let has_control = |text: &str| text.contains(['<', '[']);
    for (name, mark) in [("Mistral-Small-3.2-24B-Instruct-2506", "[IMG]"), ("google-gemma-4-31B-it-interleaved", "<|image|>")] {
        let template = ChatTemplate::new(&fixtures::golden_text(&format!("templates/{name}.jinja")), "<s>", "</s>").unwrap();
        let dialect = Dialect::of(&template, &TOKENIZER);
        let found = pictures(&Trials::new(&template), &dialect, &has_control);
        assert_eq!(found, PictureForm::Parts { mark: mark.into() }, "{name}");
    }
}

proptest! {
    /// Whatever stands around them, the pictures of a conversation are all shown once, and in order.
    #[test]
    fn all_pictures_are_shown(turns in prop::collection::vec(prop::collection::vec(any::<Option<bool>>(), 0..4), 1..6), form in 0..3usize) {
        let mut count = 0;
        let messages = turns.iter().enumerate().map(|(turn, parts)| {
            let parts = parts.iter().map(|part| match part {
                Some(true) => {
                    count += 1;
                    numbered(count - 1)
                }
                Some(false) => text("words"),
                None => text("<|im_end|>"),
            });
            let parts = parts.collect();
            let role = if turn % 2 == 0 { Role::User } else { Role::Tool };
            let call_id = (role == Role::Tool).then(|| "000000001".to_owned());
            Message { parts, call_id, ..Message::new(role) }
        }).collect();
        let prompt = rendered([IN_PLACE, ONLY_LISTS, ONLY_STRINGS][form], messages).unwrap();
        let fields: Vec<String> = prompt.pictures.iter().map(|picture| picture.field.to_string()).collect();
        prop_assert_eq!(fields, (0..count).map(|number| number.to_string()).collect::<Vec<_>>());
        prop_assert_eq!(prompt.texts.len(), count + 1);
    }
}
