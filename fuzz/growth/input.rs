//! [`Input`]: what a request contains, and how it becomes a grammar.

use std::sync::Arc;

use chat::{Declaration, Dialect, Format, InputGrammar, Rules, Tool, ToolChoice, Tools};
use grammar::{Compiler, Source};
use logits::Grammar;
use serde_json::{Map, Value};
use template::ChatTemplate;
use tokenizer::Tokenizer;

pub enum Input {
    Format(Format),
    /// Tools of which one must be called, and the template of the family that calls them.
    Tools(Vec<Tool>, &'static str),
}

impl Input {
    /// Approximate size of a request with this input [bytes].
    pub fn len(&self) -> usize {
        match self {
            Self::Format(Format::JsonObject) => 0,
            Self::Format(Format::JsonSchema(schema)) => schema.to_string().len(),
            Self::Format(Format::Regex(text) | Format::Lark(text) | Format::Gbnf(text)) => text.len(),
            Self::Format(Format::Choice(texts)) => texts.iter().map(|text| text.len() + 4).sum(),
            Self::Tools(tools, _) => tools.iter().map(of_tool).sum(),
        }
    }

    /// Whether the input's grammar compiles.
    pub fn compile(&self, compiler: &Compiler, tokenizer: &Arc<Tokenizer>) -> bool {
        match self {
            Self::Format(format) => {
                format.add_to(Source::new("start: @answer")).and_then(|source| compiler.compile(&source)).is_ok_and(starts)
            }
            Self::Tools(tools, family) => {
                let path = fixtures::golden(&format!("templates/{family}.jinja"));
                let source = std::fs::read_to_string(path).expect("a template");
                let dialect = Dialect::of(&ChatTemplate::new(&source, "<s>", "</s>").expect("a template"), tokenizer);
                let tools = Tools { tools: tools.clone(), choice: ToolChoice::Required, parallel: true };
                let rules =
                    Rules { dialect: &dialect, grammars: compiler, tools: Some(&tools), format: None, entry: chat::AnswerStart::Turn };
                rules.followed().ok().and_then(|followed| followed.grammar).is_some_and(starts)
            }
        }
    }
}

/// A tool with this schema, or with this grammar for its text.
pub fn tool(i: usize, parameters: Option<Value>, input: Option<InputGrammar>) -> Tool {
    let declaration = Declaration::Function(Map::new());
    Tool { name: format!("f{i}"), parameters, strict: i.is_multiple_of(2), declaration, input }
}

fn of_tool(tool: &Tool) -> usize {
    let text = match &tool.input {
        Some(InputGrammar::Regex(text) | InputGrammar::Lark(text)) => text.len(),
        None => 0,
    };
    100 + text + tool.parameters.as_ref().map_or(0, |schema| schema.to_string().len())
}

fn starts(grammar: Arc<dyn Grammar>) -> bool {
    grammar.start().allowed().is_ok()
}
