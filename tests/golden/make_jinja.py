"""Writes jinja.json: small templates, each with the text that Jinja in Python renders or the exception that it raises.

    python make_jinja.py [OUTPUT]        # with jinja2 3.1.6 and Python 3.11

The environment is set up as Transformers sets it up for chat templates.
"""

import datetime
import itertools
import json
import sys
from pathlib import Path

import jinja2
import jinja2.ext
from jinja2 import nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja_cases import CASES, FORMATS, METHODS, OPERANDS, OPERATORS, PERCENTS, PRODUCTS, TESTS, VALUES

# One in this many combinations of values is kept.
KEPT = 7
DATE = datetime.datetime(2026, 3, 5)
CONTEXT = {
    "messages": [
        {"role": "system", "content": " Be brief. \n"},
        {"role": "user", "content": 'It\'s <you> & "me" é🧩'},
        {
            "role": "assistant",
            "content": "<think>\nso\n</think>\n\nHello",
            "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": {"a": 1, "b": [1.0, None, True]}}}],
        },
        {"role": "tool", "content": "42", "tool_call_id": "c1"},
    ],
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}}],
    "add_generation_prompt": True,
    "bos_token": "<s>",
    "eos_token": "</s>",
}


class Generation(jinja2.ext.Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return nodes.CallBlock(self.call_method("render"), [], [], body).set_lineno(line)

    def render(self, caller):
        return caller()


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def to_json(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def environment():
    found = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
    found.filters["tojson"] = to_json
    found.globals["raise_exception"] = raise_exception
    found.globals["strftime_now"] = lambda format: DATE.strftime(format)
    return found


def rendered(env, template):
    try:
        text = env.from_string(template).render(**CONTEXT)
        text.encode()
    except Exception as error:
        return {"template": template, "raises": type(error).__name__}
    return {"template": template, "text": text}


def products():
    yield from ("{{ %s %s %s }}" % parts for parts in itertools.product(OPERANDS, OPERATORS, OPERANDS))
    yield from ("{{ %s is %s }}" % parts for parts in itertools.product(VALUES, TESTS))
    yield from ("{{ '{:%s}'.format(%s) }}" % parts for parts in itertools.product(FORMATS, ["42", "-7", "3.14159", "'text'", "true", "1e20"]))
    yield from ("{{ '%%%s|' %% (%s,) }}" % parts for parts in itertools.product(PERCENTS, ["42", "-7.5", "'text'", "none", "[1]"]))
    for names, calls in [*PRODUCTS, *METHODS]:
        yield from ("{{ %s%s }}" % parts for parts in itertools.product(names, calls))


def main() -> None:
    env = environment()
    every = 1 if "--all" in sys.argv else KEPT
    templates = dict.fromkeys([*CASES, *itertools.islice(products(), 0, None, every)])
    cases = [rendered(env, template) for template in templates]
    # Leaves out addresses, which change with each run, and complex numbers, which our templates do not have.
    cases = [case for case in cases if " at 0x" not in case.get("text", "") and not case.get("text", "").endswith("j)")]
    output = Path(sys.argv[-1] if sys.argv[-1].endswith(".json") else Path(__file__).with_name("jinja.json"))
    lines = ",\n".join(json.dumps(case, ensure_ascii=False) for case in cases)
    head = json.dumps({"context": CONTEXT, "date": DATE.strftime("%Y-%m-%d")}, ensure_ascii=False)
    output.write_text(f'{head[:-1]}, "cases": [\n{lines}\n]}}\n')
    raising = sum("raises" in case for case in cases)
    print(f"{output}: {len(cases)} cases, {raising} raise")


if __name__ == "__main__":
    main()
