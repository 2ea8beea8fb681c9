"""Runs a scripted coding agent: many turns, a billing header that changes with every request, system messages in the middle, and tool
results. After the first turn, nearly the whole prompt comes from the prefix cache."""

import anthropic

TURNS = 12
RULES = "\n".join(
    f"{number}. When you edit the file src/module_{number}.py, read it first, keep its style, and run its tests before you answer."
    for number in range(1, 51)
)


def tool(name, description, **properties):
    schema = {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}
    return {"name": name, "description": description, "input_schema": schema}


TEXT = {"type": "string"}
TOOLS = [
    tool("read_file", "Reads a file of the project.", path={**TEXT, "maxLength": 30}),
    tool("run_tests", "Runs the tests of a module.", module={**TEXT, "maxLength": 30}),
    {**tool("search", "Searches the project for a text.", text={**TEXT, "maxLength": 30}), "cache_control": {"type": "ephemeral"}},
]


def test_the_prefix_cache_holds_an_agents_conversation(server, coder, capsys):
    client = anthropic.Anthropic(base_url=server.url, api_key="not-needed", max_retries=0, timeout=120)
    messages, rows = [], []
    for turn in range(TURNS):
        header = f"x-anthropic-billing-header: cc_version=2.1.{turn}; cc_entrypoint=cli; cch={turn * 7919 % 99991:05x};"
        system = [
            {"type": "text", "text": header},
            {"type": "text", "text": "You are a coding agent. These are the rules:\n" + RULES, "cache_control": {"type": "ephemeral"}},
        ]
        pending = [block for block in messages[-1]["content"] if block["type"] == "tool_use"] if messages else []
        words = {"type": "text", "text": f"Step {turn + 1}: look at src/module_{turn + 1}.py and go on."}
        results = [
            {"type": "tool_result", "tool_use_id": call["id"], "content": f"{call['name']} of step {turn}: 3 lines, no errors found."}
            for call in pending
        ]
        if turn % 4 == 3:
            # A system message may even come between a call and its result.
            messages.append({"role": "system", "content": f"The user has opened src/module_{turn}.py in the editor."})
        messages.append({"role": "user", "content": [*results, words]})
        with client.messages.stream(
            model=coder,
            max_tokens=100,
            extra_body={"temperature": 0},
            system=system,
            tools=TOOLS,
            messages=messages,
            tool_choice={"type": "any", "disable_parallel_tool_use": True} if turn % 3 != 2 else {"type": "auto"},
            metadata={"user_id": "user_1_session_1"},
        ) as stream:
            answer = stream.get_final_message()
        assert turn % 3 == 2 or answer.stop_reason == "tool_use", answer
        messages.append({"role": "assistant", "content": [block.to_dict() for block in answer.content]})
        usage = answer.usage
        rows.append((usage.cache_read_input_tokens, usage.input_tokens + usage.cache_read_input_tokens))
    assert any(block["type"] == "tool_use" for message in messages if message["role"] == "assistant" for block in message["content"])
    shares = [cached / total for cached, total in rows[1:]]
    share = sum(cached for cached, _ in rows[1:]) / sum(total for _, total in rows[1:])
    with capsys.disabled():
        size = f"{rows[0][1]} to {rows[-1][1]} tokens"
        print(f"\nprompts of {size}; from the cache after the first turn: {share:.1%} (least {min(shares):.1%})")
    assert min(shares) > 0.85 and share > 0.93, rows
