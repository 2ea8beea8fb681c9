//! Trial renders: shows how a chat template renders short conversations whose texts are known.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::conversation::{Call, Conversation, Message, Role};
use super::dialect::Dialect;
use super::render::Layout;
use super::tools::{Declaration, Tool, ToolChoice, Tools};
use template::ChatTemplate;

/// The function's name in trials.
pub(super) const NAME: &str = "penstock_probe";
/// A role that no template knows.
const ROLE: &str = "penstock_role";
/// The number of a call that is not in the conversation.
const LONE: usize = 999_999_999;
/// The time limit for all trials of one template. Real templates take some milliseconds.
const MAX_TIME: Duration = Duration::from_secs(5);

/// Renders trials until the time is up. After that, every trial counts as refused.
pub(super) struct Trials<'a> {
    pub template: &'a ChatTemplate,
    end: Instant,
}

impl<'a> Trials<'a> {
    pub fn new(template: &'a ChatTemplate) -> Self {
        Self { template, end: Instant::now() + MAX_TIME }
    }

    /// Whether the time is up.
    pub fn is_over(&self) -> bool {
        Instant::now() > self.end
    }

    /// Renders a conversation for a dialect. `None`: the template refuses the conversation.
    pub fn render(&self, conversation: &Conversation, dialect: &Dialect) -> Option<String> {
        if self.is_over() {
            return None;
        }
        Layout::new(dialect, &str::to_owned, conversation).render(self.template).ok()
    }

    /// Whether the template shows every text of the messages in `letters`:
    ///
    /// | letter | message |
    /// |---|---|
    /// | `s` | a system message |
    /// | `u`, `a` | the user's, the assistant's |
    /// | `c` | a call |
    /// | `d` | two calls, which may be shown anywhere |
    /// | `t` | a call with a text, which may be shown anywhere |
    /// | `r` | the result of the first call that has none |
    /// | `l` | the result of a call that is not in the conversation |
    /// | `x` | a message of the role [`ROLE`], whose name must be shown before it |
    ///
    /// All other texts must be shown in their order, except for the leading system messages.
    pub fn shows(&self, letters: &str, tools: Option<&Tools>, dialect: &Dialect) -> bool {
        let trial = Trial::new(letters);
        let conversation = Conversation { messages: trial.messages, tools: tools.cloned(), ..Conversation::default() };
        let Some(text) = self.render(&conversation, dialect) else { return false };
        let places: Option<Vec<usize>> = trial.ordered.iter().map(|word| text.find(word)).collect();
        places.is_some_and(|places| places.is_sorted()) && trial.anywhere.iter().all(|word| text.contains(word))
    }

    /// Whether the template shows the leading system message after the first turns of a conversation.
    pub fn moves_system(&self, dialect: &Dialect) -> bool {
        let trial = Trial::new("suau");
        let text = self.render(&Conversation { messages: trial.messages, ..Conversation::default() }, dialect).unwrap_or_default();
        let [head, answer] = [&trial.anywhere[0], &trial.ordered[1]].map(|word| text.find(word));
        head.is_some() && head > answer
    }
}

/// Messages, and the words in them.
struct Trial {
    messages: Vec<Message>,
    ordered: Vec<String>,
    anywhere: Vec<String>,
}

impl Trial {
    fn new(letters: &str) -> Self {
        let mut trial = Self { messages: Vec::new(), ordered: Vec::new(), anywhere: Vec::new() };
        let (mut num_calls, mut num_results) = (0, 0);
        for (i, letter) in letters.chars().enumerate() {
            let word = format!("penstock-{i:02}-{letter}");
            let role = match letter {
                's' => Role::System,
                'u' | 'x' => Role::User,
                'r' | 'l' => Role::Tool,
                _ => Role::Assistant,
            };
            let mut message = Message::new(role);
            if !matches!(letter, 'c' | 'd') {
                message = Message::of_text(role, word.as_str());
                if letter == 'x' {
                    message.custom_role = Some(ROLE.to_owned());
                    trial.ordered.push(ROLE.to_owned());
                }
                let is_free = letter == 't' || (letter == 's' && letters.chars().take(i).all(|before| before == 's'));
                if is_free { &mut trial.anywhere } else { &mut trial.ordered }.push(word);
            }
            let num = match letter {
                'c' | 't' => 1,
                'd' => 2,
                _ => 0,
            };
            for _ in 0..num {
                let word = format!("penstock-call-{num_calls:02}");
                message.calls.push(Call { id: id(num_calls), name: NAME.into(), arguments: json!({"probe": word}).to_string() });
                if num == 1 { &mut trial.ordered } else { &mut trial.anywhere }.push(word);
                num_calls += 1;
            }
            match letter {
                'r' => {
                    message.call_id = Some(id(num_results));
                    num_results += 1;
                }
                'l' => message.call_id = Some(id(LONE)),
                _ => {}
            }
            trial.messages.push(message);
        }
        trial
    }
}

/// An id that every template takes.
fn id(number: usize) -> String {
    format!("{number:09}")
}

/// A function for trials.
pub(super) fn tools() -> Tools {
    let parameters = json!({"type": "object", "properties": {"probe": {"type": "string", "description": "d"}}, "required": ["probe"]});
    let function = json!({"name": NAME, "description": "d", "parameters": parameters});
    let declaration = Declaration::Function(function.as_object().cloned().unwrap_or_default());
    let tool = Tool { name: NAME.into(), parameters: Some(parameters), strict: false, declaration, input: None };
    Tools { tools: vec![tool], choice: ToolChoice::Auto, parallel: true }
}

/// The arguments of a call in trials of forms.
pub(super) fn arguments() -> Value {
    json!({"probe": "value", "number": 7})
}
