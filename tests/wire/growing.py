"""Requests that contain a small text which grows large before it becomes a grammar, by the field that contains it. docs/hardening.md has
the table."""

import json

# 20,000 characters, no two of which are adjacent: a character class with as many ranges.
CLASS = "".join(chr(0x4E00 + 2 * i) for i in range(10_000)) + "".join(chr(0xAC00 + 2 * i) for i in range(5500))
CLASS += "".join(chr(0x10000 + 2 * i) for i in range(4500))


def schema(value) -> dict:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": value}}}


def custom(*definitions: str, syntax: str = "regex") -> dict:
    form = lambda definition: {"type": "grammar", "grammar": {"syntax": syntax, "definition": definition}}
    tools = [{"type": "custom", "custom": {"name": f"f{i}", "format": form(text)}} for i, text in enumerate(definitions)]
    return {"tools": tools, "tool_choice": "required"}


def functions(*parameters, strict: bool = True) -> dict:
    named = [{"name": f"f{i}", "parameters": value, "strict": strict} for i, value in enumerate(parameters)]
    return {"tools": [{"type": "function", "function": one} for one in named], "tool_choice": "required"}


def classes(count: int, length: int) -> str:
    """Terminals that cannot be merged, each with its own character class."""
    rules = "\n".join(f't{i} ::= [{CLASS[i * length : (i + 1) * length]}] "x" | "y"' for i in range(count))
    body = " | ".join(f"t{i} root t{(i + 1) % count}" for i in range(count))
    return f'root ::= "z" | {body}\n{rules}'


def copies(levels: int, count: int) -> str:
    """A chain of this many rules, each of which refers to the next one."""
    rules = [f"a{i} ::= " + f"a{i + 1} " * count for i in range(levels)]
    return "\n".join(["root ::= a0", *rules, f'a{levels} ::= "x"'])


def shared(arguments: int, values: int) -> dict:
    """Arguments that all refer to the same list of values."""
    named = {f"p{i}": {"$ref": "#/$defs/shared"} for i in range(arguments)}
    return {"type": "object", "properties": named, "$defs": {"shared": {"enum": [f"value {i}" for i in range(values)]}}}


def doubling(levels: int) -> dict:
    """Alternatives whose number doubles with each reference."""
    both = lambda i: {"anyOf": [{"$ref": f"#/$defs/d{i}"}, {"$ref": f"#/$defs/d{i}"}]}
    defs = {f"d{i}": both(i + 1) for i in range(levels)} | {f"d{levels}": {"enum": ["x" * 1000]}}
    return {"type": "object", "properties": {"a": both(0)}, "$defs": defs}


DEFINITION = "tools[0].custom.format.grammar.definition"
PARAMETERS = "tools[0].function.parameters"
# The request body, and the field that the error names. Some of these requests succeed if the model's calls are JSON.
GBNF = {
    "a class at 14,000 places": ({"grammar": "root ::= " + "a " * 14_000 + f"\na ::= [{CLASS}]"}, "grammar"),
    "a class at 19,000 places": ({"grammar": "root ::= " + "a " * 19_000 + f"\na ::= [{CLASS}]"}, "grammar"),
    "classes that meet": ({"grammar": classes(1500, 13)}, "grammar"),
    "few classes of many ranges": ({"grammar": classes(40, 480) + "\n#" + "x" * 60_000}, "grammar"),
    "copies of rules": ({"grammar": copies(20, 9)}, "grammar"),
    "repetitions of nothing": ({"grammar": 'root ::= "" ' + "{10000}" * 60 + ' "x"'}, "grammar"),
}
REGEX = {
    "300,000 dots in a string": (custom("." * 300_000), DEFINITION),
    "three times 300,000 dots": (custom(*["." * 300_000] * 3), DEFINITION),
    "10,000 classes of words in a string": (custom(r"\w" * 10_000), DEFINITION),
    "classes of words in a grammar of a string": (custom("start: " + r"/\w\W/ " * 5000, syntax="lark"), DEFINITION),
    "400,000 classes of words": ({"regex": r"\w" * 400_000}, "regex"),
    "repetitions of classes": ({"regex": r"((\w{99}){99}){99}"}, "regex"),
    "capitals and small letters": (custom("(?i)" + "ſK" * 200), DEFINITION),
}
OTHERS = {
    "a grammar of 60,000 terminals": ({"grammar": "start: " + " | ".join(rf"/a{i}\w/" for i in range(60_000))}, "grammar"),
    "100,000 choices": ({"choice": [f"choice {i}" for i in range(100_000)]}, "choice"),
    "a schema of 90,000 values": (schema({"enum": [f"v{i}" for i in range(90_000)]}), "response_format"),
    "patterns of a schema": (schema({"type": "string", "pattern": r"^\w{5000}\W{5000}$"}), "response_format"),
    "three megabytes of tools": (functions(*[{"type": "object", "properties": {"a": {"enum": ["x" * 900_000]}}}] * 6), "tools"),
}
# For a model family that writes the arguments of a call one by one.
TAGGED = {
    "definitions that arguments share": (functions(shared(400, 2000)), PARAMETERS),
    "alternatives that double": (functions(doubling(15)), PARAMETERS),
    "the same of twenty tools": (functions(*[shared(60, 150)] * 20), "messages"),
}


def length(fields: dict) -> int:
    return len(json.dumps(fields, ensure_ascii=False).encode())
