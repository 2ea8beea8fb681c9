//! The table of model families. The texts are those of their chat templates.

use super::syntax::{Arguments, Syntax, Tagged, Thinking};

const TAGGED: Syntax = Syntax {
    name: "tagged",
    marks: &["<tool_call>"],
    trigger: "<tool_call>",
    open: "",
    before: "\n{\"name\": \"",
    between: "\", \"arguments\": ",
    after: "}\n</tool_call>",
    separator: "\n<tool_call>",
    close: "",
    arguments: Arguments::Json,
    follows_text: true,
};

/// Calls as a JSON array between brackets of the family's own.
const fn array(
    name: &'static str,
    marks: &'static [&'static str],
    trigger: &'static str,
    open: &'static str,
    close: &'static str,
) -> Syntax {
    let (before, between, after, separator) = ("{\"name\": \"", "\", \"arguments\": ", "}", ", ");
    Syntax { name, marks, trigger, open, before, between, after, separator, close, arguments: Arguments::Json, follows_text: true }
}

/// Each argument as a tag for its key and one for its value.
const fn key_tags(name: &'static str, line: &'static str) -> Syntax {
    let lines = !line.is_empty();
    Syntax {
        name,
        marks: &["<tool_call>", "<arg_key>", "<arg_value>"],
        trigger: "<tool_call>",
        open: "",
        before: "",
        between: line,
        after: "</tool_call>",
        separator: if lines { "\n<tool_call>" } else { "<tool_call>" },
        close: "",
        arguments: Arguments::Tagged(match lines {
            true => {
                Tagged { before: "<arg_key>", text: "</arg_key>\n<arg_value>", json: "</arg_key>\n<arg_value>", after: "</arg_value>\n" }
            }
            false => Tagged { before: "<arg_key>", text: "</arg_key><arg_value>", json: "</arg_key><arg_value>", after: "</arg_value>" },
        }),
        follows_text: true,
    }
}

/// Calls as tags with the name in an attribute: `tags` begin and end all calls, begin the name of one and end one.
const fn named_tags(name: &'static str, marks: &'static [&'static str], tags: [&'static str; 4], tagged: Tagged) -> Syntax {
    let [trigger, close, before, after] = tags;
    let arguments = Arguments::Tagged(tagged);
    Syntax { name, marks, trigger, open: "\n", before, between: "\">\n", after, separator: "", close, arguments, follows_text: true }
}

/// The tag of an argument says whether it is a string.
const DSML: Tagged = Tagged {
    before: "<｜DSML｜parameter name=\"",
    text: "\" string=\"true\">",
    json: "\" string=\"false\">",
    after: "</｜DSML｜parameter>\n",
};

/// What a model is told to write if its template does not know tools.
pub const GENERIC: &Syntax = &Syntax { name: "generic", marks: &[], ..TAGGED };

/// A list of calls in Python's syntax.
const fn python(name: &'static str, marks: &'static [&'static str]) -> Syntax {
    Syntax {
        name,
        marks,
        trigger: "<|tool_call_start|>",
        open: "[",
        before: "",
        between: "(",
        after: ")",
        separator: ", ",
        close: "]<|tool_call_end|>",
        arguments: Arguments::Python,
        follows_text: true,
    }
}

/// A template belongs to the first of these whose marks it holds and whose form its rendering of a call has.
pub const SYNTAXES: &[Syntax] = &[
    Syntax {
        name: "deepseek",
        marks: &["tool▁calls▁begin", "```json"],
        trigger: "<｜tool▁calls▁begin｜>",
        open: "",
        before: "<｜tool▁call▁begin｜>function<｜tool▁sep｜>",
        between: "\n```json\n",
        after: "\n```<｜tool▁call▁end｜>",
        separator: "\n",
        close: "<｜tool▁calls▁end｜>",
        arguments: Arguments::Json,
        follows_text: true,
    },
    Syntax {
        name: "deepseek-3.1",
        marks: &["tool▁calls▁begin"],
        trigger: "<｜tool▁calls▁begin｜>",
        open: "",
        before: "<｜tool▁call▁begin｜>",
        between: "<｜tool▁sep｜>",
        after: "<｜tool▁call▁end｜>",
        separator: "",
        close: "<｜tool▁calls▁end｜>",
        arguments: Arguments::Json,
        follows_text: true,
    },
    Syntax {
        name: "mistral-3",
        marks: &["[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"],
        trigger: "[TOOL_CALLS]",
        open: "",
        before: "",
        between: "[CALL_ID]000000000[ARGS]",
        after: "",
        separator: "[TOOL_CALLS]",
        close: "",
        arguments: Arguments::Json,
        follows_text: true,
    },
    Syntax {
        name: "mistral-args",
        marks: &["[TOOL_CALLS]", "[ARGS]"],
        trigger: "[TOOL_CALLS]",
        open: "",
        before: "",
        between: "[ARGS]",
        after: "",
        separator: "[TOOL_CALLS]",
        close: "",
        arguments: Arguments::Json,
        follows_text: true,
    },
    array("mistral", &["[TOOL_CALLS]"], "[TOOL_CALLS]", "[", "]"),
    array("phi", &["<|tool|>", "<|/tool|>"], "<|tool_call|>", "[", "]<|/tool_call|>"),
    array("granite-3", &["<|tool_call|>"], "<|tool_call|>", "[", "]"),
    array("functools", &["functools["], "functools", "[", "]"),
    array("tool-calls-list", &["<tool_calls>["], "<tool_calls>", "[", "]</tool_calls>"),
    Syntax { separator: "\n", ..array("tool-calls-lines", &["<tool_calls>"], "<tool_calls>", "\n", "\n</tool_calls>") },
    Syntax {
        name: "kimi",
        marks: &["<|tool_calls_section_begin|>"],
        trigger: "<|tool_calls_section_begin|>",
        open: "",
        before: "<|tool_call_begin|>functions.",
        between: ":0<|tool_call_argument_begin|>",
        after: "<|tool_call_end|>",
        separator: "",
        close: "<|tool_calls_section_end|>",
        arguments: Arguments::Json,
        follows_text: true,
    },
    Syntax {
        name: "functionary",
        marks: &["<function=", "</function>", "<|python_tag|>"],
        trigger: "<function=",
        open: "",
        before: "",
        between: ">",
        after: "</function>",
        separator: "<function=",
        close: "",
        arguments: Arguments::Json,
        follows_text: true,
    },
    Syntax {
        name: "gigachat",
        marks: &["<|function_call|>"],
        trigger: "<|function_call|>",
        open: "",
        before: "{\"name\": \"",
        between: "\", \"arguments\": ",
        after: "}",
        separator: "<|function_call|>",
        close: "",
        arguments: Arguments::Json,
        follows_text: true,
    },
    Syntax {
        name: "cohere",
        marks: &["<|START_ACTION|>", "tool_name"],
        trigger: "<|START_ACTION|>",
        open: "[\n    ",
        before: "{\"tool_call_id\": \"0\", \"tool_name\": \"",
        between: "\", \"parameters\": ",
        after: "}",
        separator: ",\n    ",
        close: "\n]<|END_ACTION|>",
        arguments: Arguments::Json,
        follows_text: true,
    },
    Syntax {
        name: "gpt-oss",
        marks: &["<|channel|>", "functions."],
        trigger: "<|channel|>commentary to=functions.",
        open: "",
        before: "",
        between: " <|constrain|>json<|message|>",
        after: "",
        // The end of the call ends the answer.
        separator: "",
        close: "",
        arguments: Arguments::Json,
        follows_text: true,
    },
    Syntax {
        name: "llama3",
        marks: &["\"parameters\": ", "ipython"],
        trigger: "{\"name\": \"",
        open: "",
        before: "",
        between: "\", \"parameters\": ",
        after: "}",
        separator: "; {\"name\": \"",
        close: "",
        arguments: Arguments::Json,
        follows_text: false,
    },
    TAGGED,
    Syntax {
        name: "function-tags",
        marks: &["<tool_call>", "<function=", "<parameter="],
        trigger: "<tool_call>",
        open: "\n",
        before: "<function=",
        between: ">\n",
        after: "</function>\n</tool_call>",
        separator: "\n<tool_call>\n",
        close: "",
        arguments: Arguments::Tagged(Tagged { before: "<parameter=", text: ">\n", json: ">\n", after: "\n</parameter>\n" }),
        follows_text: true,
    },
    python("python", &["<|tool_call_start|>"]),
    // This template shows lists of tools and results, but no calls.
    python("python-lists", &["<|tool_list_start|>"]),
    key_tags("key-tags-lines", "\n"),
    key_tags("key-tags", ""),
    named_tags(
        "named-tags",
        &["<minimax:tool_call>"],
        ["<minimax:tool_call>", "</minimax:tool_call>", "<invoke name=\"", "</invoke>\n"],
        Tagged { before: "<parameter name=\"", text: "\">", json: "\">", after: "</parameter>\n" },
    ),
    named_tags(
        "dsml-functions",
        &["｜DSML｜", "function_calls>"],
        ["<｜DSML｜function_calls>", "</｜DSML｜function_calls>", "<｜DSML｜invoke name=\"", "</｜DSML｜invoke>\n"],
        DSML,
    ),
    named_tags(
        "dsml-tools",
        &["｜DSML｜", "tool_calls>"],
        ["<｜DSML｜tool_calls>", "</｜DSML｜tool_calls>", "<｜DSML｜invoke name=\"", "</｜DSML｜invoke>\n"],
        DSML,
    ),
];

const fn between(open: &'static str, close: &'static str) -> Thinking {
    Thinking { open, close, head: "" }
}

/// A template's reasoning is written like the first of these of which it holds the opening or the closing text.
pub const THINKING: &[Thinking] = &[
    Thinking { open: "<|channel|>analysis<|message|>", close: "<|end|><|start|>assistant", head: "<|channel|>final<|message|>" },
    between("<think>", "</think>"),
    between("[THINK]", "[/THINK]"),
    between("<|START_THINKING|>", "<|END_THINKING|>"),
    between("<seed:think>", "</seed:think>"),
    between("<mm:think>", "</mm:think>"),
    between("<|channel>thought\n", "<channel|>"),
];
