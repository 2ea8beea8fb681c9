//! Rules for tools that take a text with a grammar: the arguments are `{"input": "…"}`, and the text in the string follows the grammar.

use crate::dialect::{Arguments, Syntax};
use crate::subject::Subject;
use crate::tools::{InputGrammar, Tool, Tools};
use grammar::{GrammarError, Source};

/// Adds the arguments of a call as the grammar `tool_I`.
pub fn with_arguments(source: Source, i: usize, grammar: &InputGrammar) -> Result<Source, GrammarError> {
    let name = format!("input_{i}");
    let source = match grammar {
        InputGrammar::Regex(regex) => source.with_quoted_regex(&name, regex),
        InputGrammar::Lark(lark) => source.with_quoted_lark(&name, lark),
    }?;
    let start = r#"start: "{" SPACE? "\"input\"" SPACE? ":" SPACE? "\"" @INPUT "\"" SPACE? "}""#.replace("INPUT", &name);
    source.with_lark(&format!("tool_{i}"), &format!("{start}\nSPACE: /[ \\t]{{1,2}}|\\r?\\n[ \\t]{{0,40}}/\n"))
}

/// The subject of an error in the grammar of a tool's text.
pub fn subject(tools: &Tools, tool: &Tool) -> Subject {
    Subject::ToolInput(tools.tools.iter().position(|other| other.name == tool.name).unwrap_or(0))
}

/// The tool whose grammar calls without JSON cannot follow, and why: a grammar in Lark's syntax does not know where its text ends. A
/// regular expression is followed as the pattern of the argument.
pub fn refused(syntax: &Syntax, tools: &Tools) -> Option<(Subject, GrammarError)> {
    let is_lark = |tool: &&Tool| matches!(tool.input, Some(InputGrammar::Lark(_)));
    let tool = tools.callable().find(is_lark).filter(|_| syntax.arguments != Arguments::Json)?;
    let text = "this model's calls hold no JSON, and cannot follow a grammar in Lark's syntax: give a regular expression";
    Some((subject(tools, tool), GrammarError::Invalid(text.into())))
}
