//! Translates templates in the forms of Ollama's library, renders the translations, and compares with what Ollama sends.

use proptest::prelude::*;
use serde_json::{Value, json};
use template::{ChatTemplate, RenderInput};

use super::{is_jinja, to_jinja};

fn rendered_with(source: &str, messages: Value, tools: Option<Value>, variables: Value) -> String {
    let jinja = to_jinja(source).unwrap_or_else(|error| panic!("{error}: {source}"));
    let kwargs = variables.as_object().cloned().unwrap_or_default();
    let input = RenderInput { messages, tools, add_generation_prompt: true, kwargs };
    let template = ChatTemplate::new(&jinja, "", "").unwrap_or_else(|error| panic!("{error}: {jinja}"));
    template.render(&input).unwrap_or_else(|error| panic!("{error}: {jinja}"))
}

fn rendered(source: &str, messages: Value) -> String {
    rendered_with(source, messages, None, Value::Null)
}

fn say(pairs: &[(&str, &str)]) -> Value {
    pairs.iter().map(|(role, content)| json!({"role": role, "content": content})).collect()
}

/// One exchange, with the beginning of the answer.
const CHATML: &str = "{{- if .System }}<|im_start|>system\n{{ .System }}<|im_end|>\n{{ end }}{{ if .Prompt }}<|im_start|>user\n\
    {{ .Prompt }}<|im_end|>\n{{ end }}<|im_start|>assistant\n{{ .Response }}<|im_end|>\n";

#[test]
fn a_template_of_one_exchange_is_rendered_per_exchange() {
    assert_eq!(rendered(CHATML, say(&[("user", "hi")])), "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n");
    let talk = say(&[("system", "S"), ("user", "a"), ("assistant", "b"), ("user", "c")]);
    let due = "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nb<|im_end|>\n\
        <|im_start|>user\nc<|im_end|>\n<|im_start|>assistant\n";
    assert_eq!(rendered(CHATML, talk), due);
}

#[test]
fn an_answer_that_has_begun_is_continued_and_neighbours_of_one_role_are_joined() {
    let talk = say(&[("user", "a"), ("user", "b"), ("assistant", "It")]);
    assert_eq!(rendered(CHATML, talk), "<|im_start|>user\na\n\nb<|im_end|>\n<|im_start|>assistant\nIt");
    assert_eq!(rendered(CHATML, say(&[("system", "S")])), "<|im_start|>system\nS<|im_end|>\n<|im_start|>assistant\n");
}

#[test]
fn a_template_without_a_response_ends_with_it() {
    assert_eq!(
        rendered("[INST] {{ .Prompt }} [/INST]", say(&[("user", "a"), ("assistant", "b"), ("user", "c")])),
        "[INST] a [/INST]b[INST] c [/INST]"
    );
    assert_eq!(rendered("{{ .Prompt }}", say(&[("user", "a")])), "a");
}

#[test]
fn a_response_inside_a_condition_ends_the_prompt_too() {
    let source = "U: {{ .Prompt }}\n{{ if .Response }}A: {{ .Response }}</s>{{ end }}!";
    assert_eq!(rendered(source, say(&[("user", "a"), ("assistant", "b"), ("user", "c")])), "U: a\nA: b</s>!U: c\n");
}

/// All messages at once, with variables and the comparison of an index.
const MESSAGES: &str = r#"{{- if or .System .Tools }}<|im_start|>system
{{- if .System }}
{{ .System }}
{{- end }}
{{- if .Tools }}

# Tools
{{- range .Tools }}
{"type": "function", "function": {{ .Function }}}
{{- end }}
{{- end }}<|im_end|>
{{ end }}
{{- range $i, $_ := .Messages }}
{{- $last := eq (len (slice $.Messages $i)) 1 -}}
{{- if eq .Role "user" }}<|im_start|>user
{{ .Content }}<|im_end|>
{{ else if eq .Role "assistant" }}<|im_start|>assistant
{{ if .Content }}{{ .Content }}
{{- else if .ToolCalls }}<tool_call>
{{ range .ToolCalls }}{"name": "{{ .Function.Name }}", "arguments": {{ .Function.Arguments }}}
{{ end }}</tool_call>
{{- end }}{{ if not $last }}<|im_end|>
{{ end }}
{{- else if eq .Role "tool" }}<|im_start|>user
<tool_response>
{{ .Content }}
</tool_response><|im_end|>
{{ end }}
{{- if and (ne .Role "assistant") $last }}<|im_start|>assistant
{{ end }}
{{- end }}"#;

#[test]
fn a_template_of_messages_is_rendered_once() {
    let talk = say(&[("system", "S"), ("user", "a"), ("assistant", "b"), ("user", "c")]);
    let due = "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nb<|im_end|>\n\
        <|im_start|>user\nc<|im_end|>\n<|im_start|>assistant\n";
    assert_eq!(rendered(MESSAGES, talk), due);
    assert_eq!(rendered(MESSAGES, say(&[("user", "a")])), "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n");
}

#[test]
fn tools_calls_and_results_are_written_as_go_writes_them() {
    let tools =
        json!([{"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object", "properties": {}}}}]);
    let call = json!([{"id": "1", "type": "function", "function": {"name": "f", "arguments": {"x": "1"}}}]);
    let talk = json!([{"role": "user", "content": "a"}, {"role": "assistant", "content": "", "tool_calls": call},
        {"role": "tool", "content": "r", "name": "f"}]);
    let due = "<|im_start|>system\n\n# Tools\n{\"type\": \"function\", \"function\": \
        {\"name\":\"f\",\"description\":\"d\",\"parameters\":{\"type\":\"object\",\"properties\":{}}}}<|im_end|>\n\
        <|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n<tool_call>\n\
        {\"name\": \"f\", \"arguments\": {\"x\":\"1\"}}\n</tool_call><|im_end|>\n\
        <|im_start|>user\n<tool_response>\nr\n</tool_response><|im_end|>\n<|im_start|>assistant\n";
    assert_eq!(rendered_with(MESSAGES, talk, Some(tools), Value::Null), due);
}

#[test]
fn variables_loops_and_functions_mean_what_they_mean_in_go() {
    let one = say(&[("user", "a"), ("assistant", "b"), ("user", "c")]);
    for (source, due) in [
        ("{{ range .Messages }}{{ .Role }};{{ end }}", "user;assistant;user;"),
        ("{{ range $m := .Messages }}{{ $m.Content }}{{ end }}", "abc"),
        ("{{ range $i, $m := .Messages }}{{ $i }}{{ $m.Content }}{{ end }}", "0a1b2c"),
        ("{{ $n := 0 }}{{ range $i, $m := .Messages }}{{ if eq .Role \"user\" }}{{ $n = $i }}{{ end }}{{ end }}{{ $n }}", "2"),
        ("{{ len .Messages }}", "3"),
        ("{{ (index .Messages 1).Content }}", "b"),
        ("{{ range slice .Messages 1 }}{{ .Content }}{{ end }}", "bc"),
        ("{{ with index .Messages 0 }}{{ .Content }}{{ else }}none{{ end }}{{ range .Messages }}{{ break }}{{ end }}", "a"),
        ("{{ range .Messages }}{{ if eq .Role \"assistant\" }}{{ continue }}{{ end }}{{ .Content }}{{ end }}", "ac"),
        ("{{ range .Messages }}{{ if eq .Role \"tool\" \"user\" }}{{ .Content }}{{ end }}{{ end }}", "ac"),
        ("{{ range .Messages }}{{ else }}none{{ end }}{{ if gt (len .Messages) 2 }}many{{ end }}", "many"),
        ("{{ range .Messages }}{{ .Content | printf \"%s-\" }}{{ end }}", "a-b-c-"),
        ("{{ range .Messages }}{{ json .Content }}{{ end }}", "\"a\"\"b\"\"c\""),
        ("{{ if and .Messages (not .Tools) }}{{ print \"x\" 1 }}{{ end }}", "x1"),
        ("{{ range .Messages }}{{ end }}{{ `raw \"text\"` }}{{ \"\\t\\u00e9\" }}", "raw \"text\"\té"),
        ("{{/* a comment */}}{{ range .Messages }}{{- /* one more */ -}} x {{- end }}", "xxx"),
        ("a  {{- range .Messages }} {{ .Content }} {{ end -}}  b", "a a  b  c b"),
        (
            "{{ range .Messages }}{{ if eq .Role \"user\" }}'{{ .Content }}'\\n{{ end }}{% raw %}{{ end }}",
            "'a'\\n{% raw %}{% raw %}'c'\\n{% raw %}",
        ),
        ("{{ range .Messages }}{{ true }}{{ break }}{{ end }}", "true"),
        ("{{ if (.Messages) }}{{ range (.Messages) }}{{ (.Content) }}{{ end }}{{ end }}", "abc"),
    ] {
        assert_eq!(rendered(source, one.clone()), due, "{source}");
    }
}

#[test]
fn thinking_is_that_of_this_server() {
    let source = "{{ range .Messages }}{{ if and $.IsThinkSet (not $.Think) }}/no_think {{ end }}\
        {{ if .Thinking }}<t>{{ .Thinking }}</t>{{ end }}{{ end }}{{ .ThinkLevel }}";
    let talk = json!([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "reasoning_content": "hm"}]);
    assert_eq!(rendered(source, talk.clone()), "<t>hm</t>");
    assert_eq!(rendered_with(source, talk.clone(), None, json!({"enable_thinking": false})), "/no_think /no_think <t>hm</t>");
    assert_eq!(rendered_with(source, talk, None, json!({"enable_thinking": true, "reasoning_effort": "low"})), "<t>hm</t>low");
}

#[test]
fn schemas_of_tools_can_be_walked() {
    let source = "{{ range .Tools }}{{ .Function.Name }}(\
        {{ range $name, $p := .Function.Parameters.Properties }}{{ $name }}: {{ $p.Type }}, {{ end }})\
        {{ range .Function.Parameters.Required }}{{ . }}{{ end }}{{ end }}{{ range .Messages }}{{ end }}";
    let parameters = json!({"type": "object", "properties": {"x": {"type": "string"}, "items": {"type": "number"}}, "required": ["x"]});
    let tools = json!([{"type": "function", "function": {"name": "f", "description": "d", "parameters": parameters}}]);
    assert_eq!(rendered_with(source, say(&[("user", "a")]), Some(tools), Value::Null), "f(x: string, items: number, )x");
    assert_eq!(rendered(source, say(&[("user", "a")])), "");
}

#[test]
fn what_cannot_be_translated_is_named_with_its_line() {
    for (source, line, words) in [
        ("a\n{{ .Nope }}", 2, "the field `.Nope` is not known here: this value has Messages, System"),
        ("{{ range .Messages }}\n\n{{ .Prompt }}{{ end }}", 3, "`.Prompt` is not known here: this value has Role, Content"),
        ("{{ toTypeScriptType .System }}", 1, "the function `toTypeScriptType` is not supported"),
        ("{{ if .System }}", 1, "`if` has no `end`"),
        ("{{ end }}", 1, "`end` does not belong"),
        ("{{ if .System }}{{ else }}{{ else }}{{ end }}", 1, "a second `else`"),
        ("{{ define \"x\" }}{{ end }}", 1, "`define` is not supported"),
        ("{{ template \"x\" }}", 1, "`template` is not supported"),
        ("{{ .System", 1, "expected `}}`"),
        ("{{ }}", 1, "the action is empty"),
        ("{{ $x }}", 1, "`$x` is not declared"),
        ("{{ range .Messages }}{{ $y := 1 }}{{ end }}{{ $y }}", 1, "`$y` is not declared"),
        ("{{ break }}", 1, "outside of any `range`"),
        ("{{ (.System }}", 1, "a parenthesis is not closed"),
        ("{{ .System) }}", 1, "was not opened"),
        ("{{ .System .Prompt }}", 1, "no function has arguments"),
        ("{{ printf \"%x\" .System }}", 1, "only %s, %d, %v"),
        ("{{ printf \"%s\" }}", 1, "fewer values"),
        ("{{ printf \"a\" 1 }}", 1, "more values"),
        ("{{ range .System }}{{ end }}", 1, "`range` needs a list"),
        ("{{ range .Messages }}{{ . }}{{ end }}", 1, "cannot be printed"),
        ("{{ . }}", 1, "cannot be printed"),
        ("{{ \"abc }}", 1, "does not end"),
        ("{{ 1.5 }}", 1, "not a decimal integer"),
        ("{{ `abc }}", 1, "back quotes"),
        ("{{ /* x }}", 1, "the comment does not end"),
        ("{{ .A # }}", 1, "'#' is not expected"),
        ("{{ \"\\xff\" }}", 1, "does not give a character"),
        ("{{ eq 1 }}", 1, "`eq` does not take 1 arguments"),
        ("{{ range $a, $b, $c := .Messages }}{{ end }}", 1, "one or two variables"),
        ("{{ 1 := 2 }}", 1, "only variables"),
    ] {
        let error = to_jinja(source).expect_err(source);
        assert_eq!(error.line, line, "{source}: {error}");
        assert!(error.what.contains(words), "{source}: {error}");
    }
    let deep = "{{ if .System }}".repeat(100) + &"{{ end }}".repeat(100);
    assert!(to_jinja(&deep).unwrap_err().what.contains("nested more than"));
    let deep = format!("{{{{ {}.System{} }}}}", "(".repeat(100), ")".repeat(100));
    assert!(to_jinja(&deep).unwrap_err().what.contains("nested more than"));
    assert!(to_jinja(&"x".repeat(1 << 20)).unwrap_err().what.contains("bytes, expected at most"));
}

#[test]
fn jinja_is_recognised_by_its_tags() {
    assert!(is_jinja("{% for m in messages %}{{ m.content }}{% endfor %}") && !is_jinja(CHATML) && !is_jinja(MESSAGES));
}

/// Parts of templates, some of them wrong.
const PARTS: [&str; 24] = [
    "{{ ",
    " }}",
    "{{- ",
    " -}}",
    "if .System",
    "range .Messages",
    "end",
    "else",
    "else if ",
    "$x := ",
    "$x",
    ".Role",
    ".Content",
    "eq .Role \"user\"",
    "(",
    ")",
    "len ",
    "| ",
    "text\n",
    "'",
    "\\",
    "{%",
    "with .Prompt",
    "{{ end }}",
];

proptest! {
    #[test]
    fn every_source_is_translated_to_valid_jinja_or_refused(parts in prop::collection::vec(prop::sample::select(&PARTS[..]), 0..24)) {
        let source = parts.concat();
        if let Ok(jinja) = to_jinja(&source) {
            prop_assert!(ChatTemplate::new(&jinja, "", "").is_ok(), "{}: {}", source, jinja);
        }
    }

    #[test]
    fn text_outside_of_actions_is_kept(text in "[^{]{0,80}") {
        prop_assert_eq!(rendered(&format!("{text}{{{{ .Prompt }}}}"), say(&[("user", "a")])), format!("{text}a"));
    }
}
