//! The table of model families. The texts come from the families' chat templates.

use super::notation::Notation;
use super::syntax::{Arguments, Syntax, Tagged};

/// A syntax with the texts that most families share, most of them empty.
const PLAIN: Syntax = Syntax {
    name: "",
    marks: &[],
    header: "",
    trigger: "",
    open: "",
    before: "",
    between: "",
    extra: "",
    after: "",
    separator: "",
    close: "",
    arguments: Arguments::Json,
    follows_text: true,
};

const TAGGED: Syntax = Syntax {
    name: "tagged",
    marks: &["<tool_call>"],
    trigger: "<tool_call>",
    before: "\n{\"name\": \"",
    between: "\", \"arguments\": ",
    after: "}\n</tool_call>",
    separator: "\n<tool_call>",
    ..PLAIN
};

/// The syntax that a model is told to write if its template does not support tools.
pub const GENERIC: &Syntax = &Syntax { name: "generic", marks: &[], ..TAGGED };

/// Calls as a JSON array between the family's own brackets.
const fn array(
    name: &'static str,
    marks: &'static [&'static str],
    trigger: &'static str,
    open: &'static str,
    close: &'static str,
) -> Syntax {
    let (before, between, after, separator) = ("{\"name\": \"", "\", \"arguments\": ", "}", ", ");
    Syntax { name, marks, trigger, open, before, between, after, separator, close, ..PLAIN }
}

/// An id after the arguments.
const ID: &str = ", \"id\": \"{id}\"";

/// Each argument as a tag for its key and a tag for its value. `lines`: the texts after the function's name and before the end of the call.
const fn key_tags(name: &'static str, lines: [&'static str; 2], tagged: Tagged) -> Syntax {
    let (marks, trigger) = (&["<tool_call>", "<arg_key>", "<arg_value>"], "<tool_call>");
    let [between, after] = lines;
    let separator = if between.is_empty() { "<tool_call>" } else { "\n<tool_call>" };
    Syntax { name, marks, trigger, between, after, separator, arguments: Arguments::Tagged(tagged), ..PLAIN }
}

const fn arg_tags(mid: &'static str, after: &'static str) -> Tagged {
    Tagged { before: "<arg_key>", text: mid, json: mid, after }
}

/// Each function as a tag with the function's name, around tags with the names of arguments.
const fn function_tags(name: &'static str, marks: &'static [&'static str], tags: [&'static str; 3], value: [&'static str; 2]) -> Syntax {
    let [trigger, after, separator] = tags;
    let [text, end] = value;
    let tagged = Tagged { before: "<parameter=", text, json: text, after: end };
    let arguments = Arguments::Tagged(tagged);
    Syntax { name, marks, trigger, open: "\n", before: "<function=", between: ">\n", after, separator, arguments, ..PLAIN }
}

/// Calls as tags with the name in an attribute. `tags`: the beginning and the end of all calls, the beginning of a call's name, and the
/// end of a call.
const fn named_tags(name: &'static str, marks: &'static [&'static str], tags: [&'static str; 4], tagged: Tagged) -> Syntax {
    let [trigger, close, before, after] = tags;
    Syntax { name, marks, trigger, open: "\n", before, between: "\">\n", after, close, arguments: Arguments::Tagged(tagged), ..PLAIN }
}

/// Tags whose attribute says whether the argument is a string.
const DSML: Tagged = Tagged {
    before: "<｜DSML｜parameter name=\"",
    text: "\" string=\"true\">",
    json: "\" string=\"false\">",
    after: "</｜DSML｜parameter>\n",
};

/// A list of calls in Python's syntax.
const fn python(name: &'static str, marks: &'static [&'static str], tags: [&'static str; 3]) -> Syntax {
    let [trigger, open, close] = tags;
    let (between, after, separator, arguments) = ("(", ")", ", ", Arguments::Python);
    Syntax { name, marks, trigger, open, between, after, separator, close, arguments, ..PLAIN }
}

/// Each call between InternLM's action tokens.
const fn internlm(name: &'static str, between: &'static str) -> Syntax {
    let (trigger, before, after) = ("<|action_start|><|plugin|>\n", "{\"name\": \"", "}<|action_end|>");
    let marks = &["<|action_start|>", "<|plugin|>"];
    Syntax { name, marks, trigger, before, between, after, separator: "\n<|action_start|><|plugin|>\n", ..PLAIN }
}

const LISTS: [&str; 3] = ["<|tool_call_start|>", "[", "]<|tool_call_end|>"];

/// JSON with bare keys and with Gemma's own marks around strings.
const GEMMA: Notation = Notation {
    object: ["{", "}"],
    key: ["", ":"],
    member_end: "",
    list: ["[", "]"],
    item: ["", ""],
    comma: ",",
    string: ["<|\"|>", "<|\"|>"],
    mark: "<|\"|>",
    sorted: true,
};

/// A tag around every member and every item, at any depth.
const MINIMAX: Notation = Notation {
    object: ["", ""],
    key: ["]<]minimax[>[<", ">"],
    member_end: "]<]minimax[>[</{name}>",
    list: ["", ""],
    item: ["]<]minimax[>[<item>", "]<]minimax[>[</item>"],
    comma: "",
    string: ["", ""],
    mark: "]<]minimax[>[",
    sorted: false,
};

/// The families in order of precedence. A template belongs to the first one whose marks it holds and whose form its rendered calls have.
pub const SYNTAXES: &[Syntax] = &[
    Syntax {
        name: "deepseek",
        marks: &["tool▁calls▁begin", "```json"],
        trigger: "<｜tool▁calls▁begin｜>",
        before: "<｜tool▁call▁begin｜>function<｜tool▁sep｜>",
        between: "\n```json\n",
        after: "\n```<｜tool▁call▁end｜>",
        separator: "\n",
        close: "<｜tool▁calls▁end｜>",
        ..PLAIN
    },
    Syntax {
        name: "deepseek-3.1",
        marks: &["tool▁calls▁begin"],
        trigger: "<｜tool▁calls▁begin｜>",
        before: "<｜tool▁call▁begin｜>",
        between: "<｜tool▁sep｜>",
        after: "<｜tool▁call▁end｜>",
        close: "<｜tool▁calls▁end｜>",
        ..PLAIN
    },
    Syntax {
        name: "mistral-3",
        marks: &["[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"],
        trigger: "[TOOL_CALLS]",
        between: "[CALL_ID]{id}[ARGS]",
        separator: "[TOOL_CALLS]",
        ..PLAIN
    },
    Syntax {
        name: "mistral-args",
        marks: &["[TOOL_CALLS]", "[ARGS]"],
        trigger: "[TOOL_CALLS]",
        between: "[ARGS]",
        separator: "[TOOL_CALLS]",
        ..PLAIN
    },
    Syntax { extra: ID, ..array("mistral", &["[TOOL_CALLS]"], "[TOOL_CALLS]", "[", "]") },
    array("phi", &["<|tool|>", "<|/tool|>"], "<|tool_call|>", "[", "]<|/tool_call|>"),
    Syntax {
        after: "}<|/tool_call|>",
        separator: "<|tool_call|>",
        ..array("phi-objects", &["<|tool|>", "<|/tool|>"], "<|tool_call|>", "", "")
    },
    array("granite-3", &["<|tool_call|>"], "<|tool_call|>", "[", "]"),
    array("functools", &["functools["], "functools", "[", "]"),
    Syntax { extra: ID, ..array("tool-calls-list", &["<tool_calls>["], "<tool_calls>", "[", "]</tool_calls>") },
    array("nemotron-2", &["<TOOLCALL>"], "<TOOLCALL>", "[", "]</TOOLCALL>"),
    Syntax { separator: "\n", ..array("tool-calls-lines", &["<tool_calls>"], "<tool_calls>", "\n", "\n</tool_calls>") },
    Syntax {
        name: "apertus",
        marks: &["<|tools_prefix|>"],
        trigger: "<|tools_prefix|>",
        open: "[",
        before: "{\"",
        between: "\": ",
        after: "}",
        separator: ", ",
        close: "]<|tools_suffix|>",
        ..PLAIN
    },
    Syntax {
        name: "kimi",
        marks: &["<|tool_calls_section_begin|>"],
        trigger: "<|tool_calls_section_begin|>",
        before: "<|tool_call_begin|>functions.",
        between: ":{index}<|tool_call_argument_begin|>",
        after: "<|tool_call_end|>",
        close: "<|tool_calls_section_end|>",
        ..PLAIN
    },
    Syntax {
        name: "kimi-3",
        marks: &["<|open|>", "<|close|>", "<|sep|>", "argument"],
        trigger: "<|open|>tools<|sep|>",
        before: "<|open|>call tool=\"",
        between: "\" index=\"{number}\"<|sep|>",
        after: "<|close|>call<|sep|>",
        close: "<|close|>tools<|sep|>",
        arguments: Arguments::Tagged(Tagged {
            before: "<|open|>argument key=\"",
            text: "\" type=\"string\"<|sep|>",
            json: "\" type=\"{type}\"<|sep|>",
            after: "<|close|>argument<|sep|>",
        }),
        ..PLAIN
    },
    Syntax {
        name: "solar",
        marks: &["<|tool_call:begin|>", "<|tool_call:args|>"],
        trigger: "<|tool_calls|>",
        before: "<|tool_call:begin|>{id}<|tool_call:name|>",
        between: "<|tool_call:args|>",
        after: "<|tool_call:end|>",
        ..PLAIN
    },
    Syntax {
        name: "functionary",
        marks: &["<function=", "</function>", "<|python_tag|>"],
        trigger: "<function=",
        between: ">",
        after: "</function>",
        separator: "<function=",
        ..PLAIN
    },
    Syntax {
        name: "gigachat",
        marks: &["<|function_call|>"],
        trigger: "<|function_call|>",
        before: "{\"name\": \"",
        between: "\", \"arguments\": ",
        after: "}",
        separator: "<|function_call|>",
        ..PLAIN
    },
    Syntax {
        name: "cohere",
        marks: &["<|START_ACTION|>", "tool_name"],
        trigger: "<|START_ACTION|>",
        open: "[\n    ",
        before: "{\"tool_call_id\": \"{index}\", \"tool_name\": \"",
        between: "\", \"parameters\": ",
        after: "}",
        separator: ",\n    ",
        close: "\n]<|END_ACTION|>",
        ..PLAIN
    },
    Syntax {
        name: "cohere-action",
        marks: &["Action:", "```json", "\"tool_name\""],
        trigger: "Action:\n```json\n",
        open: "[\n    ",
        before: "{\n        \"tool_name\": \"",
        between: "\",\n        \"parameters\": ",
        after: "\n    }",
        separator: ",\n    ",
        close: "\n]```",
        ..PLAIN
    },
    Syntax {
        name: "gpt-oss",
        marks: &["<|channel|>", "functions."],
        trigger: "<|channel|>commentary to=functions.",
        // The end of a call ends the answer.
        between: " <|constrain|>json<|message|>",
        ..PLAIN
    },
    Syntax {
        name: "llama3",
        marks: &["\"parameters\": ", "ipython"],
        trigger: "{\"name\": \"",
        between: "\", \"parameters\": ",
        after: "}",
        separator: "; {\"name\": \"",
        follows_text: false,
        ..PLAIN
    },
    internlm("internlm", "\", \"parameters\": "),
    internlm("internlm-arguments", "\", \"arguments\": "),
    TAGGED,
    function_tags(
        "function-tags",
        &["<tool_call>", "<function=", "<parameter="],
        ["<tool_call>", "</function>\n</tool_call>", "\n<tool_call>\n"],
        [">\n", "\n</parameter>\n"],
    ),
    function_tags(
        "seed",
        &["<seed:tool_call>", "<function="],
        ["<seed:tool_call>", "</function>\n</seed:tool_call>", "\n<seed:tool_call>\n"],
        [">", "</parameter>\n"],
    ),
    Syntax {
        name: "function-names",
        marks: &["<function name=\"", "<param name=\""],
        trigger: "<function name=\"",
        between: "\">",
        after: "</function>",
        separator: "\n<function name=\"",
        arguments: Arguments::Tagged(Tagged { before: "<param name=\"", text: "\">", json: "\">", after: "</param>" }),
        ..PLAIN
    },
    python("python", &["<|tool_call_start|>"], LISTS),
    // These templates show lists of tools and results, but no calls.
    python("python-lists", &["<|tool_list_start|>"], LISTS),
    python("python-plain-lists", &["List of tools: ["], LISTS),
    Syntax {
        separator: "\n",
        ..python("python-lines", &["<function_calls>", "<functions>"], ["<function_calls>", "\n", "\n</function_calls>"])
    },
    key_tags("key-tags-lines", ["\n", "</tool_call>"], arg_tags("</arg_key>\n<arg_value>", "</arg_value>\n")),
    key_tags("key-tags-ling", ["\n", "\n</tool_call>"], arg_tags("</arg_key>\n<arg_value>", "</arg_value>")),
    key_tags("key-tags", ["", "</tool_call>"], arg_tags("</arg_key><arg_value>", "</arg_value>")),
    Syntax {
        name: "key-tags-hunyuan",
        marks: &[":opensource", "<arg_key", "<tool_sep"],
        trigger: "<tool_calls:opensource>",
        open: "\n",
        before: "<tool_call:opensource>",
        between: "<tool_sep:opensource>\n",
        after: "</tool_call:opensource>\n",
        close: "</tool_calls:opensource>",
        arguments: Arguments::Tagged(Tagged {
            before: "<arg_key:opensource>",
            text: "</arg_key:opensource>\n<arg_value:opensource>",
            json: "</arg_key:opensource>\n<arg_value:opensource>",
            after: "</arg_value:opensource>\n",
        }),
        ..PLAIN
    },
    named_tags(
        "named-tags",
        &["<minimax:tool_call>"],
        ["<minimax:tool_call>", "</minimax:tool_call>", "<invoke name=\"", "</invoke>\n"],
        Tagged { before: "<parameter name=\"", text: "\">", json: "\">", after: "</parameter>\n" },
    ),
    Syntax {
        header: " to={name}<|message|>",
        separator: "</atem:function_calls><|eom|><|start|>assistant to={name}<|message|><atem:function_calls>\n",
        ..named_tags(
            "atem",
            &["<atem:function_calls>"],
            ["<atem:function_calls>", "</atem:function_calls>", "<atem:invoke name=\"", "</atem:invoke>\n"],
            Tagged { before: "<atem:parameter name=\"", text: "\">", json: "\">", after: "</atem:parameter>\n" },
        )
    },
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
    Syntax {
        name: "minimax-3",
        marks: &["]<]minimax[>["],
        trigger: "]<]minimax[>[<tool_call>",
        open: "\n",
        before: "]<]minimax[>[<invoke name=\"",
        between: "\">",
        after: "]<]minimax[>[</invoke>\n",
        close: "]<]minimax[>[</tool_call>",
        arguments: Arguments::Notated(&MINIMAX),
        ..PLAIN
    },
    Syntax {
        name: "gemma-4",
        marks: &["<|tool_call>call:"],
        trigger: "<|tool_call>",
        before: "call:",
        between: "{",
        after: "}<tool_call|>",
        separator: "<|tool_call>",
        arguments: Arguments::Notated(&GEMMA),
        ..PLAIN
    },
];
