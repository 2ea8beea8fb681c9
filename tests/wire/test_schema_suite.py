"""JSON Schema's own test suite. The server either refuses a schema and names the place in it, or a small model writes a value that another
implementation validates. The server refuses the schemas that llguidance refuses, and no others."""

import json
import re
import tarfile
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path

import jsonschema
import pytest
from harness import ROOT
from llguidance import LLMatcher

# The package `json-schema-test-suite` 0.0.10 as `npm pack` downloads it, with its licence (MIT).
SUITE = ROOT / "tests" / "golden" / "json-schema-test-suite-0.0.10.tgz"
# Draft 3 is no longer supported. Its schemas are read by the rules of the latest draft.
DRAFTS = {"draft3": None, "draft4": "http://json-schema.org/draft-04/schema#"}
# Bounds on the 179 schemas of the suite.
MOST_REFUSED = 50
MOST_CUT = 2
# A small model may write the digits of a number without end. If an answer is cut, the test asks again and biases the model towards the end
# of its turn (token 2).
LEAN = {"logit_bias": {"2": 8}, "frequency_penalty": 1}
TRIES = [{"seed": 1}, {"seed": 2}, *({"seed": seed, **LEAN} for seed in range(4))]


@pytest.fixture(scope="module")
def suite() -> list[tuple[str, object]]:
    found = []
    with tarfile.open(SUITE) as files:
        for member in sorted(files.getnames()):
            parts = Path(member).parts
            if not member.endswith(".json") or len(parts) < 4 or parts[2] not in DRAFTS:
                continue
            for group in json.load(files.extractfile(member)):
                schema = group["schema"]
                if isinstance(schema, dict) and DRAFTS[parts[2]]:
                    schema = {"$schema": DRAFTS[parts[2]], **schema}
                found.append((f"{'/'.join(parts[2:])}: {group['description']}", schema))
    return found


def llguidance_refuses(schema) -> str | None:
    """The reason for which llguidance refuses the schema, if it does. It must not accept a schema by ignoring a part of it."""
    failed, messages = LLMatcher.validate_grammar_with_warnings(LLMatcher.grammar_from_json_schema(json.dumps(schema)))
    assert failed or not messages, (schema, messages)
    return "; ".join(messages) if failed else None


def has_long_number(schema) -> bool:
    """Whether the schema contains a number beyond the integers that a double represents exactly."""
    return any(abs(float(number)) > 2**53 for number in re.findall(r"-?\d+(?:\.\d+)?(?:e[+-]?\d+)?", json.dumps(schema)))


def test_the_python_library_has_the_version_that_the_server_uses():
    assert re.search(rf'^llguidance = {{ version = "{re.escape(version("llguidance"))}"', (ROOT / "Cargo.toml").read_text(), re.M)


def test_every_schema_is_followed_or_refused(server, suite):
    assert len(suite) > 150, "the suite is complete"

    def one(case):
        name, schema = case
        asked = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
        alone = llguidance_refuses(schema)
        for fields in TRIES:
            reply = server.chat("Write a short JSON value.", response_format=asked, max_tokens=60, temperature=0.8, **fields)
            if reply.status == 400:
                error = reply.error
                # A bound that a double cannot represent is refused by the field's own name.
                by_name = error["param"].startswith("response_format.") and has_long_number(schema)
                assert by_name or (error["param"] == "response_format" and "#" in error["message"]), (name, error)
                return name, "refused" if alone or by_name else "refused by us alone", error["message"]
            # The server rewrites numbers that a double cannot represent, which llguidance refuses or rounds.
            assert reply.status == 200 and (alone is None or has_long_number(schema)), (name, schema, alone, reply.body)
            (choice,) = reply.json()["choices"]
            if choice["finish_reason"] != "length":
                break
        else:
            return name, "cut", choice["message"]["content"]
        value = json.loads(choice["message"]["content"])
        # A boolean is draft 4's form of an exclusive bound, which the server reads in every draft.
        booleans = isinstance(schema, dict) and any(isinstance(schema.get(f"exclusive{bound}"), bool) for bound in ("Minimum", "Maximum"))
        latest = jsonschema.Draft4Validator if booleans else jsonschema.Draft202012Validator
        validator = jsonschema.validators.validator_for(schema, default=latest)
        errors = [error.message for error in validator(schema).iter_errors(value)]
        return name, "invalid" if errors else "valid", f"{json.dumps(schema)} {choice['message']['content']} {errors}"

    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(one, suite))
    counts = {kind: sum(result[1] == kind for result in results) for kind in ("valid", "cut", "refused", "refused by us alone", "invalid")}
    print(f"{len(suite)} schemas, of which llguidance alone accepts {len(suite) - counts['refused']}: {counts}")
    for name, kind, detail in results:
        if kind != "valid":
            print(f"{kind} {name}: {detail}")
    assert counts["invalid"] == 0, [result for result in results if result[1] == "invalid"]
    assert counts["refused by us alone"] == 0, [result for result in results if result[1] == "refused by us alone"]
    assert counts["refused"] <= MOST_REFUSED, counts
    assert counts["cut"] <= MOST_CUT, counts
