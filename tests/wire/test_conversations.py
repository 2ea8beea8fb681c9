"""/v1/conversations, and chat completions with `store`: what is stored, what a response adds, and the limits."""

from harness import MODEL, Server, chunks_of, cli

CONFIG = {"SERVER__DEFAULT_MODELS": MODEL, "SERVER__ON_DEMAND": "false", "ENGINE__KV_TOKENS": "8192"}


def message(text: str) -> dict:
    return {"type": "message", "role": "user", "content": text}


def texts(page: dict) -> list[str]:
    return [item["content"][0]["text"] for item in page["data"]]


def test_a_conversation_is_made_changed_read_and_deleted(server):
    made = server.post("/v1/conversations", {"metadata": {"a": "b"}, "items": [message("one"), message("two")]}).json()
    assert made["object"] == "conversation" and made["id"].startswith("conv_") and made["metadata"] == {"a": "b"}
    path = f"/v1/conversations/{made['id']}"
    assert server.get(path).json() == made
    assert server.post(path, {"metadata": {"c": "d"}}).json()["metadata"] == {"c": "d"}
    added = server.post(f"{path}/items", {"items": [message("three")]}).json()
    assert added["object"] == "list" and texts(added) == ["three"] and added["first_id"] == added["data"][0]["id"]
    assert texts(server.get(f"{path}/items?order=asc").json()) == ["one", "two", "three"]
    page = server.get(f"{path}/items?limit=2").json()
    assert texts(page) == ["three", "two"] and page["has_more"]
    assert texts(server.get(f"{path}/items?after={page['last_id']}").json()) == ["one"]
    item = page["data"][1]
    assert server.get(f"{path}/items/{item['id']}").json() == item
    assert server.request("DELETE", f"{path}/items/{item['id']}").json()["id"] == made["id"]
    assert server.get(f"{path}/items/{item['id']}").status == 404
    assert texts(server.get(f"{path}/items?order=asc").json()) == ["one", "three"]
    assert server.request("DELETE", path).json() == {"id": made["id"], "object": "conversation.deleted", "deleted": True}
    for method, rest in [("GET", ""), ("DELETE", ""), ("GET", "/items"), ("GET", "/items/msg_1")]:
        assert server.request(method, path + rest).status == 404
    assert server.post(f"{path}/items", {"items": [message("x")]}).status == 404


def test_a_response_reads_and_extends_its_conversation(server):
    id = server.post("/v1/conversations", {"items": [message("My name is Zork.")]}).json()["id"]
    ask = {"model": MODEL, "conversation": id, "temperature": 0, "max_output_tokens": 16}
    first = server.post("/v1/responses", ask | {"input": "What is my name?"}).json()
    assert first["conversation"] == {"id": id}
    whole = [message("My name is Zork."), message("What is my name?")]
    same = server.post("/v1/responses", {"model": MODEL, "input": whole, "temperature": 0, "max_output_tokens": 16}).json()
    assert first["output"][0]["content"] == same["output"][0]["content"]
    assert first["usage"]["input_tokens"] == same["usage"]["input_tokens"]
    items = server.get(f"/v1/conversations/{id}/items?order=asc").json()["data"]
    assert [item["role"] for item in items] == ["user", "user", "assistant"] and items[2] == first["output"][0]
    second = server.post("/v1/responses", ask | {"input": "Again?", "conversation": {"id": id}, "stream": True, "ignore_eos": True})
    assert second.status == 200 and b"event: response.incomplete\n" in second.body, "the answer continues up to the limit"
    assert len(server.get(f"/v1/conversations/{id}/items").json()["data"]) == 5
    gone = server.post("/v1/responses", ask | {"input": "x", "conversation": "conv_nope"})
    assert gone.status == 404 and gone.error["param"] == "conversation"
    both = server.post("/v1/responses", ask | {"input": "x", "previous_response_id": first["id"]})
    assert both.error["param"] == "conversation"


def test_a_wrong_body_names_its_field(server):
    id = server.post("/v1/conversations", {}).json()["id"]
    rows = [
        ("", {"metadata": {"a": 1}}, "metadata"),
        ("", {"items": [message("x")] * 21}, "items"),
        ("", {"items": [{"role": "boss", "content": "x"}]}, "items[0].role"),
        ("", {"itmes": [{"role": "user", "content": "x"}]}, "itmes"),
        (f"/{id}", {}, "metadata"),
        (f"/{id}/items", {"items": []}, "items"),
        (f"/{id}/items", {}, "items"),
        (f"/{id}/items", {"items": [{"type": "item_reference", "id": "msg_nope"}]}, "items[0].id"),
    ]
    for path, body, param in rows:
        reply = server.post(f"/v1/conversations{path}", body)
        assert reply.status == 400 and reply.error["param"] == param, (body, reply.body)


def test_conversations_are_bounded_and_belong_to_tenants(tmp_path):
    env = {"AUTH__KEYS_FILE": str(tmp_path / "keys.toml")}
    ann, bob = ({"authorization": "Bearer " + cli("keys", "add", name, env=env).stdout.split()[-1]} for name in ["ann", "bob"])
    with Server(CONFIG | env | {"STORAGE__MAX_CONVERSATIONS": "3", "STORAGE__MAX_STORED_CHATS": "2"}) as server:
        ids = [server.post("/v1/conversations", {}, headers=ann).json()["id"] for _ in range(4)]
        found = [server.get(f"/v1/conversations/{id}", headers=ann).status for id in ids]
        assert found == [404, 200, 200, 200]
        assert server.get(f"/v1/conversations/{ids[3]}", headers=bob).status == 404
        body = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2, "store": True}
        chats = [server.post("/v1/chat/completions", body, headers=ann).json()["id"] for _ in range(3)]
        assert [chat["id"] for chat in server.get("/v1/chat/completions", headers=ann).json()["data"]] == chats[1:]
        assert server.get("/v1/chat/completions", headers=bob).json()["data"] == []
        assert server.get(f"/v1/chat/completions/{chats[2]}", headers=bob).status == 404


def test_a_stored_chat_is_listed_read_changed_and_deleted(server):
    one = server.chat("Say one.", store=True, metadata={"kind": "x"}).json()
    chunks = chunks_of(server.chat("Say two.", store=True, stream=True, metadata={"kind": "y"}))
    two = chunks[0]["id"]
    server.chat("Say three.")
    assert [chat["id"] for chat in server.get("/v1/chat/completions").json()["data"]][-2:] == [one["id"], two]
    assert server.get("/v1/chat/completions?metadata[kind]=y").json()["data"][-1]["id"] == two
    assert server.get("/v1/chat/completions?model=other").json()["data"] == []
    path = f"/v1/chat/completions/{one['id']}"
    assert server.get(path).json() == one | {"metadata": {"kind": "x"}}
    streamed = server.get(f"/v1/chat/completions/{two}").json()
    text = "".join(choice["delta"].get("content", "") for chunk in chunks for choice in chunk["choices"])
    assert streamed["choices"][0]["message"]["content"] == text and streamed["usage"]["completion_tokens"] > 0
    assert server.post(path, {"metadata": {"kind": "z"}}).json()["metadata"] == {"kind": "z"}
    (asked,) = server.get(f"{path}/messages").json()["data"]
    assert asked["role"] == "user" and asked["content"] == "Say one." and asked["id"]
    assert server.request("DELETE", path).json() == {"id": one["id"], "object": "chat.completion.deleted", "deleted": True}
    assert server.get(path).status == 404 and server.get(f"{path}/messages").status == 404
    assert server.get("/v1/chat/completions?limit=0").error["param"] == "limit"
    assert server.chat("x", store=True, metadata={"a": 1}).error["param"] == "metadata"
