"""Checks that an endpoint honours a field: for each field of docs/api.md, how the response with the field differs from one without it."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass

from harness import Reply, Server, sse_events

# Token ids of the default model: one of an ordinary text, and those that end a message.
LETTER, ENDS = 81, (0, 2)
# A bias that ends the answer at once, and one that repeats a token forever.
ENDING, ONE_TOKEN = {str(token): 100 for token in ENDS}, {str(LETTER): 100}
PATHS = {
    "chat": "/v1/chat/completions",
    "completions": "/v1/completions",
    "responses": "/v1/responses",
    "embeddings": "/v1/embeddings",
}


@dataclass
class Cell:
    """An endpoint that honours a field, a small greedy request for it, and the fields that the table sends to test the field."""

    server: Server
    endpoint: str
    base: dict
    sample: dict

    def post(self, **fields) -> Reply:
        return self.server.post(PATHS[self.endpoint], {**self.base, **self.sized(fields)})

    def sized(self, fields: dict) -> dict:
        """Names the arguments as the endpoint does. `size`: the limit on generated tokens. `words`: the prompt."""
        fields = dict(fields)
        if (size := fields.pop("size", None)) is not None:
            fields["max_output_tokens" if self.endpoint == "responses" else "max_tokens"] = size
        if (words := fields.pop("words", None)) is not None:
            said = {"chat": {"messages": [{"role": "user", "content": words}]}, "completions": {"prompt": words}}
            fields |= said.get(self.endpoint, {"input": words})
        return fields

    def json(self, **fields) -> dict:
        reply = self.post(**fields)
        assert reply.status == 200, (self.endpoint, fields, reply.body)
        return reply.json()

    def choice(self, **fields) -> dict:
        return self.json(**fields)["choices"][0]

    def part(self, **fields) -> dict:
        """The text item of a response, with its properties."""
        return self.json(**fields)["output"][0]["content"][0]

    def text(self, **fields) -> str:
        if self.endpoint == "responses":
            return "".join(part["text"] for item in self.json(**fields)["output"] for part in item.get("content", []))
        choice = self.choice(**fields)
        return choice["message"]["content"] if self.endpoint == "chat" else choice["text"]

    def usage(self, **fields) -> tuple[int, int, int]:
        """The number of prompt tokens, generated tokens and cached prompt tokens."""
        usage = self.json(**fields)["usage"]
        if self.endpoint == "responses":
            return usage["input_tokens"], usage["output_tokens"], usage["input_tokens_details"]["cached_tokens"]
        return usage["prompt_tokens"], usage.get("completion_tokens", 0), usage.get("prompt_tokens_details", {}).get("cached_tokens", 0)

    def is_whole(self, **fields) -> bool:
        """Whether the answer ended by itself."""
        answer = self.json(**fields)
        if self.endpoint == "responses":
            return answer["status"] == "completed"
        return answer["choices"][0]["finish_reason"] != "length"

    def calls(self, **fields) -> list[str]:
        """The names of the functions that are called."""
        answer = self.json(**fields)
        if self.endpoint == "responses":
            return [item["name"] for item in answer["output"] if item["type"] == "function_call"]
        return [call["function"]["name"] for call in answer["choices"][0]["message"].get("tool_calls") or []]

    def events(self, **fields) -> list[dict]:
        reply = self.post(stream=True, **fields)
        assert reply.status == 200 and reply.headers["content-type"].startswith("text/event-stream"), reply.body
        if self.endpoint == "responses":
            return [json.loads(line[6:]) for line in reply.body.decode().split("\n") if line.startswith("data: {")]
        return [json.loads(event) for event in sse_events(reply.body) if event != "[DONE]"]


def comes_in_pieces(cell: Cell) -> None:
    assert len(cell.events(size=8)) > 4


def has_what_the_options_ask_for(cell: Cell) -> None:
    events, plain = events_with(cell, cell.sample), events_with(cell, {})
    if cell.endpoint == "responses":
        shown = lambda found: [event for event in found if event["type"].endswith("text.delta") and event.get("obfuscation")]
    else:
        shown = lambda found: [event for event in found if event.get("usage")]
    assert shown(events)
    assert cell.endpoint == "responses" or not shown(plain)


def events_with(cell: Cell, fields: dict) -> list[dict]:
    return cell.events(**{name: value for name, value in fields.items() if name != "stream"})


def has_two_choices(cell: Cell) -> None:
    assert len(cell.json(**cell.sample)["choices"]) == 2


def is_the_best_of_two(cell: Cell) -> None:
    answer = cell.json(**cell.sample, ignore_eos=True)
    assert len(answer["choices"]) == 1 and answer["usage"]["completion_tokens"] == 4, "both candidates were generated"


def has_log_probabilities(cell: Cell) -> None:
    tokens = cell.choice(**cell.sample, ignore_eos=True)["logprobs"]["content" if cell.endpoint == "chat" else "tokens"]
    assert len(tokens) == 2 and cell.choice()["logprobs"] is None


def has_alternatives(cell: Cell) -> None:
    if cell.endpoint == "responses":
        tokens = cell.part(**cell.sample, include=["message.output_text.logprobs"])["logprobs"]
    else:
        tokens = cell.choice(**cell.sample)["logprobs"]["content"]
    assert tokens and all(len(token["top_logprobs"]) == 2 for token in tokens)


def includes_log_probabilities(cell: Cell) -> None:
    assert cell.part(**cell.sample)["logprobs"] and not cell.part()["logprobs"]


def repeats_the_prompt(cell: Cell) -> None:
    if cell.endpoint == "chat":
        last = cell.sample["messages"][-1]["content"]
        assert cell.text(**cell.sample) == last + cell.text(messages=cell.sample["messages"])
    else:
        assert cell.text(**cell.sample) == "Hi" + cell.text()


def names_tokens_by_ids(cell: Cell) -> None:
    found = cell.choice(**cell.sample, logprobs=True if cell.endpoint == "chat" else 0, ignore_eos=True)["logprobs"]
    names = [token["token"] for token in found["content"]] if cell.endpoint == "chat" else found["tokens"]
    assert len(names) == 2 and all(name.startswith("token_id:") for name in names)


def keeps_its_length(cell: Cell) -> None:
    length = lambda **fields: sum(value * value for value in cell.json(**fields)["data"][0]["embedding"])
    assert abs(length() - 1) < 1e-4 < abs(length(**cell.sample) - 1)


def has_a_longer_prompt(cell: Cell) -> None:
    assert cell.usage(**cell.sample)[0] > cell.usage()[0]


def is_a_system_message(cell: Cell) -> None:
    messages = [{"role": "system", "content": cell.sample["instructions"]}, {"role": "user", "content": "Hi"}]
    chat = cell.server.chat(messages=messages, max_tokens=1).json()
    assert cell.usage(**cell.sample)[0] == chat["usage"]["prompt_tokens"] != cell.usage()[0]


def has_a_shorter_prompt(cell: Cell) -> None:
    assert cell.usage(**cell.sample)[0] < cell.usage(**{**cell.sample, next(reversed(cell.sample)): None})[0]


def stops_at_the_text(cell: Cell) -> None:
    plain = cell.text(size=8)
    stop = plain[2:5]
    assert cell.text(size=8, stop=[stop]) == plain.partition(stop)[0]


def keeps_the_stop_text(cell: Cell) -> None:
    plain = cell.text(size=8)
    stop = plain[2:5]
    assert cell.text(size=8, stop=[stop], **cell.sample) == plain.partition(stop)[0] + stop


def shows_special_tokens(cell: Cell) -> None:
    special = {"logit_bias": {"1": 100}}
    assert cell.text(**special, **cell.sample) == "<|im_start|>" * 2 and cell.text(**special) == ""


def cuts_the_prompt(cell: Cell) -> None:
    words = "one two three four five six seven"
    assert cell.usage(words=words, **cell.sample)[0] == 4 < cell.usage(words=words)[0]


def has_ids(cell: Cell) -> None:
    assert len(cell.choice(**cell.sample, ignore_eos=True)["token_ids"]) == 2 and "token_ids" not in cell.choice()


def has_allowed_ids_alone(cell: Cell) -> None:
    assert set(cell.choice(**cell.sample, return_token_ids=True)["token_ids"]) <= {5, 6}


def avoids_the_words(cell: Cell) -> None:
    words = cell.text(size=8).split()
    assert words and words[0] not in cell.text(size=8, bad_words=[words[0]]).split()


def has_log_probabilities_of_the_prompt(cell: Cell) -> None:
    answer = cell.json(**cell.sample)
    found = answer.get("prompt_logprobs") or answer["choices"][0].get("prompt_logprobs")
    assert len(found) == answer["usage"]["prompt_tokens"]


def ends_its_reasoning(cell: Cell) -> None:
    used = lambda **fields: cell.json(size=40, ignore_eos=True, **fields)["usage"]["completion_tokens_details"]["reasoning_tokens"]
    assert used() == 40 and 0 < used(**cell.sample) < 10


def has_the_template(cell: Cell) -> None:
    assert cell.usage(**cell.sample)[0] == 1 < cell.usage()[0], "the template renders the words alone"


def calls_the_function(cell: Cell) -> None:
    assert cell.choice(size=200, **cell.sample)["message"]["function_call"]["name"] == "f"


def changes_nothing(cell: Cell) -> None:
    assert cell.text(size=8, **cell.sample) == cell.text(size=8)


def is_an_object(cell: Cell) -> None:
    assert cell.text(**cell.sample).startswith("{") and not cell.text().startswith("{")


def is_the_same_again(cell: Cell) -> None:
    drawn = lambda seed: cell.text(size=8, temperature=1.5, seed=seed)
    assert drawn(3) == drawn(3) != drawn(4)


def draws_other_tokens(cell: Cell) -> None:
    assert cell.text(size=8, temperature=1.5, seed=3) != cell.text(size=8)


def leaves_the_likeliest(**narrow):
    """The narrowest value of a filter leaves one token, so sampling gives the greedy text."""

    def effect(cell: Cell) -> None:
        drawn = {"size": 8, "temperature": 1.5, "seed": 3}
        assert cell.text(**drawn, **narrow) == cell.text(size=8) != cell.text(**drawn)

    return effect


def says_something_else(**penalty):
    """A penalty ends a repetition."""

    def effect(cell: Cell) -> None:
        asked = {"words": "Say: la la la la la la la la la la la la la la", "size": 24}
        assert cell.text(**asked, **penalty) != cell.text(**asked)

    return effect


def prefers_the_token(cell: Cell) -> None:
    letter = cell.server.post("/detokenize", {"model": cell.base["model"], "tokens": [LETTER]}).json()["prompt"]
    assert cell.text(logit_bias=ONE_TOKEN) == letter * 2 != cell.text()


def has_one_token(cell: Cell) -> None:
    plain = {name: value for name, value in cell.base.items() if not name.startswith("max_")}
    one = Cell(cell.server, cell.endpoint, plain, cell.sample)
    assert one.usage(**cell.sample)[1] == 1 and not one.is_whole(**cell.sample)


def goes_on_past_the_end(**fields):
    """Without the field, the model ends its answer at once."""

    def effect(cell: Cell) -> None:
        ending = {"logit_bias": ENDING, "size": 4}
        assert cell.is_whole(**ending) and cell.usage(**ending)[1] < 3 <= cell.usage(**ending, **fields)[1]

    return effect


def stops_at_the_id(cell: Cell) -> None:
    endless = {"logit_bias": ONE_TOKEN, "size": 4}
    assert cell.is_whole(**endless, stop_token_ids=[LETTER]) and not cell.is_whole(**endless)


def shares_no_prefix(name: str):
    """A salt hides the prefix that another request cached. A second request with the same salt finds its own prefix."""

    def effect(cell: Cell) -> None:
        if cell.endpoint == "embeddings":
            return  # these prompts are not cached, so there is nothing to share
        asked = {"words": f"{name} {cell.endpoint}: " + "a long prompt of many words " * 20}
        cell.json(**asked)
        cached = lambda **fields: cell.usage(**asked, **fields)[2]
        assert cached() > 0 and cached(**cell.sample) == 0 < cached(**cell.sample)

    return effect


def follows(text: str, **rule):
    def effect(cell: Cell) -> None:
        assert cell.text(size=8, **rule) == text != cell.text(size=8)

    return effect


def calls_a_tool(cell: Cell) -> None:
    assert cell.calls(size=200, **cell.sample) and not cell.calls(size=8, **{**cell.sample, "tool_choice": "none"})


def calls_one_tool(cell: Cell) -> None:
    assert cell.calls(size=200, tool_choice="required", **cell.sample) == ["f"]


def follows_the_other_response(cell: Cell) -> None:
    answer = cell.json(**cell.sample)
    assert answer["previous_response_id"] == cell.sample["previous_response_id"]
    assert answer["usage"]["input_tokens"] > cell.usage()[0]


def is_kept(cell: Cell) -> None:
    status = lambda store: cell.server.get(f"{PATHS[cell.endpoint]}/{cell.json(store=store)['id']}").status
    assert (status(True), status(False)) == (200, 404)


def is_queued(cell: Cell) -> None:
    assert cell.json(**cell.sample)["status"] == "queued"


def leaves_out_old_turns(cell: Cell) -> None:
    old = [{"role": "user", "content": "word " * 9000}, {"role": "assistant", "content": "Ho"}]
    long = {"input": [*old, {"role": "user", "content": "Hi"}]}
    assert cell.post(**long).error["code"] == "context_length_exceeded" and cell.post(**long, **cell.sample).status == 200


def is_noted(cell: Cell) -> None:
    if cell.endpoint == "responses":
        assert cell.json(**cell.sample)["metadata"] == {"a": "b"}
    elif cell.endpoint == "chat":
        kept = cell.json(store=True, **cell.sample)["id"]
        assert cell.server.get(f"{PATHS['chat']}/{kept}").json()["metadata"] == {"a": "b"}
    else:
        # completions are not stored, so the field is only validated
        assert cell.post(metadata={"a": 1}).error["param"].startswith("metadata")


def is_in_base64(cell: Cell) -> None:
    vector = lambda **fields: cell.json(**fields)["data"][0]["embedding"]
    assert len(base64.b64decode(vector(**cell.sample))) == 4 * len(vector())


def has_eight_dimensions(cell: Cell) -> None:
    assert len(cell.json(**cell.sample)["data"][0]["embedding"]) == 8


EFFECTS = {
    "stream": comes_in_pieces,
    "stream_options": has_what_the_options_ask_for,
    "n": has_two_choices,
    "best_of": is_the_best_of_two,
    "logprobs": has_log_probabilities,
    "top_logprobs": has_alternatives,
    "include": includes_log_probabilities,
    "echo": repeats_the_prompt,
    "suffix": has_a_longer_prompt,
    "stop": stops_at_the_text,
    "include_stop_str_in_output": keeps_the_stop_text,
    "skip_special_tokens": shows_special_tokens,
    "truncate_prompt_tokens": cuts_the_prompt,
    "return_token_ids": has_ids,
    "return_tokens_as_token_ids": names_tokens_by_ids,
    "allowed_token_ids": has_allowed_ids_alone,
    "bad_words": avoids_the_words,
    "prompt_logprobs": has_log_probabilities_of_the_prompt,
    "thinking_token_budget": ends_its_reasoning,
    "chat_template": has_the_template,
    "functions": has_a_longer_prompt,
    "function_call": calls_the_function,
    "verbosity": changes_nothing,
    "prediction": changes_nothing,
    "speculative.n_max": changes_nothing,
    "speculative.n_min": changes_nothing,
    "speculative.p_min": changes_nothing,
    "json_schema": is_an_object,
    "structured_outputs": is_an_object,
    "seed": is_the_same_again,
    "temperature": draws_other_tokens,
    "top_p": leaves_the_likeliest(top_p=1e-6),
    "top_k": leaves_the_likeliest(top_k=1),
    "min_p": leaves_the_likeliest(min_p=1),
    "presence_penalty": says_something_else(presence_penalty=2),
    "frequency_penalty": says_something_else(frequency_penalty=2),
    "repetition_penalty": says_something_else(repetition_penalty=2),
    "logit_bias": prefers_the_token,
    "max_tokens": has_one_token,
    "max_completion_tokens": has_one_token,
    "max_output_tokens": has_one_token,
    "min_tokens": goes_on_past_the_end(min_tokens=3),
    "ignore_eos": goes_on_past_the_end(ignore_eos=True),
    "stop_token_ids": stops_at_the_id,
    "user": shares_no_prefix("user"),
    "cache_salt": shares_no_prefix("cache_salt"),
    "add_generation_prompt": has_a_shorter_prompt,
    "chat_template_kwargs": has_a_longer_prompt,
    "instructions": is_a_system_message,
    "previous_response_id": follows_the_other_response,
    "store": is_kept,
    "background": is_queued,
    "truncation": leaves_out_old_turns,
    "metadata": is_noted,
    "response_format": is_an_object,
    "regex": follows("123", regex="123"),
    "grammar": follows("a", grammar='start: "a"'),
    "choice": follows("only", choice=["only"]),
    "text": is_an_object,
    "tools": has_a_longer_prompt,
    "tool_choice": calls_a_tool,
    "parallel_tool_calls": calls_one_tool,
    "continue_final_message": has_a_shorter_prompt,
    "reasoning": has_a_longer_prompt,
    "reasoning_effort": has_a_longer_prompt,
    "encoding_format": is_in_base64,
    "dimensions": has_eight_dimensions,
    "normalize": keeps_its_length,
}
