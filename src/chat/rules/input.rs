//! Rules for tools that take a text with a grammar: the arguments are `{"input": "…"}`, and the text in the string follows the grammar.

use super::RuleError;
use crate::dialect::{Arguments, Syntax};
use crate::subject::Subject;
use crate::tools::{InputGrammar, Tool, Tools};
use grammar::{GrammarError, Source};

/// Adds the arguments of a call as `tool_I`.
pub fn with_arguments(source: Source, i: usize, grammar: &InputGrammar) -> Result<Source, GrammarError> {
    let name = format!("input_{i}");
    let source = match grammar {
        InputGrammar::Regex(regex) => source.with_quoted_regex(&name, regex),
        InputGrammar::Lark(lark) => source.with_quoted_lark(&name, lark),
    }?;
    let start = r#"start: "{" SPACE? "\"input\"" SPACE? ":" SPACE? "\"" @INPUT "\"" SPACE? "}""#.replace("INPUT", &name);
    source.with_lark(&format!("tool_{i}"), &format!("{start}\nSPACE: /[ \\t]{{1,2}}|\\r?\\n[ \\t]{{0,40}}/\n"))
}

/// What an error about the grammar of a tool's text is about.
pub fn subject(tools: &Tools, tool: &Tool) -> Subject {
    Subject::ToolInput(tools.tools.iter().position(|other| other.name == tool.name).unwrap_or(0))
}

/// Refuses what calls without JSON cannot follow: a grammar does not know where its text ends. A regular expression is followed as the
/// pattern of the argument.
pub fn check(syntax: &Syntax, tools: &Tools) -> Result<(), RuleError> {
    let is_lark = |tool: &&Tool| matches!(tool.input, Some(InputGrammar::Lark(_)));
    match tools.callable().find(is_lark).filter(|_| syntax.arguments != Arguments::Json) {
        None => Ok(()),
        Some(tool) => {
            let text = "this model's calls hold no JSON, and cannot follow a grammar in Lark's syntax: give a regular expression";
            Err(RuleError { subject: subject(tools, tool), error: GrammarError::Invalid(text.into()) })
        }
    }
}
