"""Known incidents of inference servers, each generalised to its class. Tests for races and engine faults are in the list of
`test_rows_complete.py`. docs/hardening.md covers crafted state files, which Penstock does not read."""

import json
import random
import socket
import struct
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from gguf_bytes import array, integer, small
from harness import MODEL, ROOT, Server, cli, gzip_bomb, raw, resident, status_of, wait_until
from test_bad_input import CHAT, COMPLETIONS, body_of
from test_rows_pull import ELSEWHERE, FILE, MODEL_FILE, TREE, Hub, listed, listing, redirect, scene  # noqa: F401
from test_structured import named

u32, u64 = (lambda n: integer(4, "<I", n)), (lambda n: integer(10, "<Q", n))


def refuses(tmp_path, content: bytes) -> None:
    """Checks that the model with these bytes is refused with an error by a process that exits by itself."""
    path = tmp_path / "crafted.gguf"
    path.write_bytes(content)
    done = cli("run", path, "ab", "--max-tokens", "1", timeout=30)
    assert done.returncode == 1 and "panicked" not in done.stderr and "crafted" in done.stderr, (done.returncode, done.stderr)


def test_incident_sums_and_products_of_sizes_that_wrap(tmp_path):
    """Heap overflow through a GGUF file: sizes whose 64-bit sum or product wraps to a small number."""
    random_ = random.Random(5)
    for _ in range(40):
        file = small()
        for one in random_.sample(file.tensors, 3):
            one.dims = tuple(1 << random_.choice([16, 31, 32, 33, 48, 62, 63]) for _ in range(random_.randint(1, 4)))
        refuses(tmp_path, file.build())
    for offset in (2**64 - 32, 2**64 - 256, 2**63, 2**63 - 32):
        refuses(tmp_path, small().tensor("blk.0.ffn_up.weight", offset=offset).build())
    refuses(tmp_path, small().add("general.alignment", u32(1 << 31)).build())


def test_incident_a_vocabulary_that_overflows(tmp_path):
    """Buffer overflow in the tokenizer: wrong counts and lengths in the vocabulary."""
    tokens, scores, types = "tokenizer.ggml.tokens", "tokenizer.ggml.scores", "tokenizer.ggml.token_type"
    for file in (
        small().set(tokens, array(8, 1 << 31)),
        small().set(tokens, array(8, 4, struct.pack("<Q", 2**31 - 1) * 4)),
        small().set(tokens, ["a"] * 5).set(scores, [0.0] * 5).set(types, [1] * 5),
        small().without(tokens),
        small().set(scores, [0.0] * 3),
        small().set("tokenizer.ggml.unknown_token_id", u32(2**31)),
        small().set("tokenizer.ggml.bos_token_id", u64(2**63)),
    ):
        refuses(tmp_path, file.build())
    long = small().set(tokens, ["<s>", "a" * 2_000_000, "b", "ab"]).build()
    (tmp_path / "long.gguf").write_bytes(long)
    assert cli("run", tmp_path / "long.gguf", "ab", "--max-tokens", "1").returncode == 0, "a long token is valid"


def test_incident_divisions_by_zero(tmp_path):
    """Crash on a division by zero: head counts, group counts, block sizes, rope dimensions and expert counts of zero."""
    keys = ("attention.head_count", "embedding_length", "block_count", "feed_forward_length", "context_length", "attention.key_length")
    for key in (*keys, "attention.value_length"):
        refuses(tmp_path, small().set(f"llama.{key}", u32(0)).build())
    refuses(tmp_path, small().add("llama.expert_count", u32(1)).add("llama.expert_used_count", u32(0)).build())
    refuses(tmp_path, small().add("llama.rope.freq_base", 0.0).build())
    unscaled = small().add("llama.rope.scaling.type", "linear").add("llama.rope.scaling.factor", 0.0)
    (tmp_path / "unscaled.gguf").write_bytes(unscaled.build())
    done = cli("run", tmp_path / "unscaled.gguf", "ab", "--max-tokens", "1", timeout=30)
    assert done.returncode == 0, ("a factor of 0 asks for no scaling", done.stderr)


EXTREMES = [
    0,
    -1,
    1,
    -(2**31),
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**32,
    2**63 - 1,
    2**63,
    2**64 - 1,
    2**64,
    -(2**63),
    -(2**63) - 1,
    1e308,
    -1e308,
    5e-324,
]
NUMBERS = "n best_of max_tokens max_completion_tokens top_k top_p min_p temperature seed logprobs top_logprobs min_tokens".split()
NUMBERS += "presence_penalty frequency_penalty repetition_penalty stop stop_token_ids logit_bias prompt".split()
# The extremes that a field accepts. Every other extreme is refused. An endpoint without the field accepts the value that has no effect.
COUNTS, SHARES, PENALTIES = [-1, 1, 2**31 - 1, 2**31, 2**32 - 1], [0, 1, 5e-324], [0, -1, 1, 5e-324]
TAKEN = {
    "n": [1],
    "best_of": [1],
    "max_tokens": COUNTS,
    "max_completion_tokens": {CHAT: COUNTS},
    "top_k": [0, *COUNTS],
    "top_p": SHARES,
    "min_p": SHARES,
    "temperature": SHARES,
    "seed": [number for number in EXTREMES if isinstance(number, int) and -(2**63) <= number < 2**63],
    "logprobs": {COMPLETIONS: [0, 1]},
    "top_logprobs": {CHAT: [0]},
    "min_tokens": [0],
    "presence_penalty": PENALTIES,
    "frequency_penalty": PENALTIES,
    "repetition_penalty": [1],
    "stop_token_ids": [[0], [1]],
    "logit_bias": [{"0": 0}, {"1": 1}],
    "prompt": {COMPLETIONS: [[0], [1]]},
}


def is_taken(path: str, name: str, value) -> bool:
    """Whether the endpoint serves a request with this value. A chat has no prompt and ignores the field."""
    taken = TAKEN.get(name, [])
    taken = taken.get(path, []) if isinstance(taken, dict) else taken
    return value in taken or (path, name) == (CHAT, "prompt")


def test_incident_numbers_at_their_extremes(server):
    """Crash or huge allocation through a negative count, the smallest integer or a huge `n`. Every numeric field gets every extreme. If the
    field accepts it, the request is served. Otherwise it is refused by name."""
    before = resident(server)
    connection = server.connection(60)
    for path in (CHAT, COMPLETIONS):
        for name in NUMBERS:
            for number in EXTREMES:
                for value in (number, {str(number): number} if name == "logit_bias" else [number]):
                    # The answer is one word, so a large limit on tokens ends soon, too.
                    body = json.dumps(body_of(path, **{"max_tokens": 1, "choice": ["a"], name: value}))
                    connection.request("POST", path, body, {"content-type": "application/json"})
                    reply = connection.getresponse()
                    answer = reply.read()
                    # a whole number beyond 64 bits is refused in every field
                    is_exact = not isinstance(number, int) or -(2**63) <= number < 2**64
                    taken = is_exact and is_taken(path, name, value)
                    assert reply.status == (200 if taken else 400), (path, name, value, reply.status, answer[:200])
                    assert reply.status == 200 or json.loads(answer)["error"]["param"].startswith(name), (path, name, value, answer[:200])
    assert resident(server) - before < 64 << 20


def test_incident_bad_requests_leave_no_memory_behind(server):
    """Memory leak per refused request: a hundred refused requests leave at most 1 MiB."""
    function = {"type": "function", "function": {"name": "f", "strict": True, "parameters": {"type": 5}}}
    fields = [{"temperature": -1}, {"n": 10**9}, {"stop": ["a"] * 9}, {"messages": [{"role": "usr", "content": "y" * 5000}]}]
    fields += [{"response_format": named({"pattern": "["})}, {"tools": [function]}, {"model": "none"}]
    fields += [{"logit_bias": {str(i): 1 for i in range(5000)}}]
    bodies = [json.dumps(body_of(CHAT, **one)).encode() for one in fields] + [b"{", b"[" * 5000, b"\xff", b'{"a":1,"a":2}']
    statuses = [404 if one == {"model": "none"} else 400 for one in fields] + [400] * 4

    def ask(count: int) -> None:
        connection = server.connection(60)
        for index in range(count):
            connection.request("POST", CHAT, bodies[index % len(bodies)], {"content-type": "application/json"})
            reply = connection.getresponse()
            assert reply.read() and reply.status == statuses[index % len(bodies)], bodies[index % len(bodies)][:100]
        connection.close()

    # The allocator and the threads' own memory grow at first. A leak grows for ever.
    ask(300)
    grown = []
    while not grown or (grown[-1] > 6 << 20 and len(grown) < 4):
        before = resident(server)
        ask(600)
        time.sleep(1)
        grown.append(resident(server) - before)
    print(f"600 bad requests: {[one >> 10 for one in grown]} KiB")
    assert grown[-1] <= 6 << 20, "a hundred refused requests leave at most 1 MiB"


def test_incident_grammars_that_overflow_the_stack(server):
    """Stack overflow through nesting in schemas, patterns, grammars, JSON and templates, or through a reference to nothing."""
    deep = {"type": "string"}
    for _ in range(60):
        deep = {"type": "array", "items": deep}
    branches = {"type": "string"}
    for _ in range(40):
        branches = {"anyOf": [branches, {"allOf": [branches]}]} if len(json.dumps(branches)) < 20_000 else {"not": branches}
    defs = {f"d{i}": {"anyOf": [{"$ref": f"#/$defs/d{(i + 1) % 900}"}, {"$ref": f"#/$defs/d{(i + 7) % 900}"}]} for i in range(900)}
    followed, refused = (
        [
            {"response_format": named(deep)},
            {"regex": "(?:a*)*" * 500},
            {"grammar": "start: a0\n" + "\n".join(f"a{i}: a{i + 1} | a{i + 2}" for i in range(3000)) + '\na3000: "x"\na3001: "y"'},
            {"grammar": ""},  # requests nothing
        ],
        [
            {"response_format": named(branches)},
            {"response_format": named({"$ref": "#/$defs/d0", "$defs": defs})},
            {"response_format": named({"$ref": "#/nowhere"})},
            {"response_format": named({"$ref": "#/$defs/~2"})},
            {"regex": "(" * 900 + "a" + ")" * 900},
            {"regex": "(a|" * 900 + "b" + ")" * 900},
            {"regex": "[" * 2000},
            {"grammar": "start: " + "(" * 2000 + '"a"' + ")" * 2000},
            {"grammar": "start: start start start\n"},
            {"grammar": "\x00"},
            {"grammar": "start: @missing"},
        ],
    )
    for fields in followed:
        reply = server.chat("x", max_tokens=2, **fields)
        assert reply.status == 200, (str(fields)[:80], reply.status, reply.body[:200])
    for fields in refused:
        reply = server.chat("x", max_tokens=2, **fields)
        assert reply.status == 400 and reply.error["param"] in fields, (str(fields)[:80], reply.status, reply.body[:200])


def test_incident_template_parameters_that_block_the_server(server):
    """Denial of service through template arguments that name another template or make rendering endless. Arguments that the template does
    not use change nothing, and those that the server sets are refused."""
    plain = server.chat("Hi").json()["choices"]
    for kwargs in ({"chat_template": "{{ 1 }}"}, {"x": "a" * 1_000_000}, {"tokenize": False}, {"a": [[]] * 1000}, {"__class__": 1}):
        reply = server.chat("Hi", chat_template_kwargs=kwargs)
        assert reply.status == 200 and reply.json()["choices"] == plain, (str(kwargs)[:50], reply.body[:200])
        assert server.get("/health", timeout=2).status == 200
    reply = server.chat("Hi", chat_template_kwargs={"range": 10**9})
    assert reply.status == 400 and reply.error["param"] == "chat_template_kwargs.range", reply.body


EVIL = "{{ messages[0].content.__class__.__mro__ }}{% for x in range(9**9) %}{% endfor %}{{ raise_exception('owned') }}"


def test_incident_text_is_never_a_template(server):
    """Template injection by a client: text of a user, a tool or a name is data."""
    plain = server.post("/apply-template", {"model": MODEL, "messages": [{"role": "user", "content": "MARK"}]}).json()["prompt"]
    reply = server.post("/apply-template", {"model": MODEL, "messages": [{"role": "user", "content": EVIL}]})
    assert reply.status == 200 and reply.json()["prompt"] == plain.replace("MARK", EVIL), reply.body
    for fields in ({"user": EVIL}, {"stop": [EVIL]}, {"metadata": {"a": EVIL}}, {"chat_template_kwargs": {"note": EVIL}}):
        assert server.chat("Hi", max_tokens=1, **fields).status == 200, fields


@pytest.mark.parametrize(
    "source, code",
    [
        ("{{ ''.__class__ }}", 0),
        ("{{ cycler.__init__.__globals__ }}", 1),
        ("{% include '/etc/passwd' %}", 1),
        ("{% import 'os' as os %}{{ os }}", 1),
    ],
)
def test_incident_a_template_reaches_nothing(tmp_path, source, code):
    """Template injection by a model file: a template cannot reach files, modules or the program. An undefined name is empty, and an
    attribute of it is an error."""
    (tmp_path / "t.jinja").write_text(source)
    (tmp_path / "i.json").write_text(json.dumps({"messages": [{"role": "user", "content": "Hi"}]}))
    done = cli("render", tmp_path / "t.jinja", "--input", tmp_path / "i.json")
    assert (done.returncode, done.stdout.strip()) == (code, "") and "panicked" not in done.stderr, (done.stdout, done.stderr)


def test_incident_server_side_request_forgery(server):
    """SSRF through a request: the server never fetches addresses in schemas, images, tools and models."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0.3)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/x"
        parts = [
            {"type": "image_url", "image_url": {"url": url}},
            {"type": "input_file", "file_url": url},
            {"type": "file", "file": {"file_data": url}},
        ]
        for part in parts:
            assert server.chat(messages=[{"role": "user", "content": [part]}]).status == 400
        assert server.chat("Hi", max_tokens=1, model=url).status == 404
        for fields in ({"response_format": named({"$ref": url})}, {"tools": [{"type": "mcp", "server_url": url}]}):
            assert server.chat("Hi", max_tokens=1, **fields).status == 400, fields
        body = {"model": MODEL, "input": "Hi", "tools": [{"type": "mcp", "server_label": "x", "server_url": url}]}
        assert server.post("/v1/responses", body).status == 400
        with pytest.raises(TimeoutError):
            listener.accept()


def test_incident_a_download_reaches_no_private_address(scene):  # noqa: F811
    """SSRF through a download: the hub redirects to this machine, to its local network or to the file system."""
    for target, words in list(ELSEWHERE.items())[:4]:
        scene.hub.answers = {TREE: redirect(target)}
        scene.fails(words)


def test_incident_the_token_is_sent_to_no_other_domain(scene):  # noqa: F811
    """Token leak: a listing whose next page or whose file is on another host."""
    other = Hub({TREE: listing(listed()), "/m": MODEL_FILE})

    def next_page(request) -> None:
        body = listing(listed("other.txt"))
        request.send_response(200)
        request.send_header("link", f'<{other.url}{TREE}>; rel="next"')
        request.send_header("content-length", str(len(body)))
        request.end_headers()
        request.wfile.write(body)

    try:
        for answers, words in (
            ({TREE: next_page}, "it holds no GGUF file"),
            ({TREE: listing(listed()), FILE: redirect(f"{other.url}/m")}, "is refused: it is not https"),
        ):
            scene.hub.answers = answers
            scene.fails(words)
        assert not other.seen
    finally:
        other.shutdown()
        other.server_close()


def test_incident_nothing_outside_of_the_store_is_written_or_deleted(scene):  # noqa: F811
    """Path traversal through the names of models, files and repositories."""
    outside = scene.folder / "around" / "keep.gguf"
    outside.write_bytes(b"mine")
    for name in (
        "../keep",
        "..",
        ".",
        "/",
        str(outside),
        "hf:../..",
        "hf:o/../../keep.gguf",
        "hf:o/r@../../x",
        "hf:o/r:../x",
        "\u202e",
        ".locks",
    ):
        for command in ("rm", "pull"):
            process = scene.command(command, name)
            out, err = process.communicate(timeout=60)
            is_own = command == "pull" and name == str(outside)  # a file that the user names is used where it is
            assert process.returncode == (0 if is_own else 1) and "panicked" not in err, (command, name, err)
    assert outside.read_bytes() == b"mine" and {path.name for path in (scene.folder / "around").iterdir()} == {"store", "keep.gguf"}


def test_incident_decompression_bombs(server):
    """Decompression bomb, sent to every endpoint that reads a body."""
    before = resident(server)
    paths = [path for path, methods in json.loads((ROOT / "openapi" / "openapi.json").read_text())["paths"].items() if "post" in methods]
    bomb = gzip_bomb(256)
    # Uploads accept no content encoding, nor does the path whose body chooses the endpoint. Compaction is refused before its body is read.
    unread = {"/v1/files": 415, "/invocations": 415, "/v1/responses/compact": 400, "/ping": 200}
    for path in paths:
        if "{" not in path and not path.startswith("/admin"):
            reply = server.post(path, bomb, headers={"content-encoding": "gzip"})
            assert reply.status == unread.get(path, 413), (path, reply.status, reply.body[:200])
    assert len(paths) > 5
    wait_until(lambda: resident(server) - before < 16 << 20, 15, "memory has not grown")


def test_incident_errors_leak_no_addresses_or_paths(server):
    """Information leak: no error that a client gets contains an address or a path."""
    answers = []
    for path in (CHAT, COMPLETIONS, "/v1/embeddings", "/v1/responses", "/tokenize", "/detokenize", "/apply-template"):
        for body in (
            b"{",
            b"[]",
            b'{"model": 5}',
            b'{"model": "../../etc/passwd"}',
            b'{"model": "' + MODEL.encode() + b'", "prompt": -1, "input": -1, "messages": -1}',
        ):
            answers.append(server.post(path, body).body)
    for fields in (
        {"regex": "["},
        {"grammar": "start: x"},
        {"response_format": named({"$ref": "#/x"})},
        {"tools": [{}]},
        {"chat_template": "x"},
    ):
        answers.append(server.chat("x", **fields).body)
    for sent in (b"\x00\r\n\r\n", b"GET /\xff HTTP/1.1\r\nHost: a\r\n\r\n", b"GET / HTTP/9\r\n\r\n"):
        answers.append(raw(server, sent, 3))
    answers += [server.get(path).body for path in ("/%00", "/../etc/passwd", "/v1/models/x", "/docs/../../x", "/metrics/x")]
    for answer in answers:
        for secret in (
            b"0x7f",
            b"0x55",
            b"src/",
            b".rs:",
            b"/root",
            b"/work",
            b"/home",
            b"/tmp",
            b"thread '",
            b"panicked",
            b"backtrace",
            b".cargo",
        ):
            assert secret not in answer.lower(), (secret, answer[:400])


def test_incident_no_origin_is_reflected_with_credentials(server):
    """Cross-origin access by any web page: the server returns an origin only if it is listed, and never allows credentials."""
    for origin in ("https://evil.example", "null", f"http://127.0.0.1:{server.port}.evil.example", "http://localhost.evil.example", "*"):
        for method, path in (("GET", "/v1/models"), ("OPTIONS", CHAT), ("POST", COMPLETIONS)):
            body = {"model": MODEL, "prompt": "Hi", "max_tokens": 1} if method == "POST" else None
            headers = {"origin": origin, "access-control-request-method": "POST"}
            reply = server.request(method, path, body, headers=headers)
            assert not [name for name in reply.headers if name.lower().startswith("access-control-")], (
                origin,
                method,
                reply.headers.items(),
            )
    with Server({"SERVER__DEFAULT_MODELS": MODEL, "ENGINE__KV_TOKENS": "2048", "SERVER__CORS_ORIGINS": "*"}) as open_server:
        reply = open_server.get("/v1/models", headers={"origin": "https://evil.example"})
        assert "access-control-allow-credentials" not in reply.headers and reply.status == 200


def test_incident_ids_beyond_the_vocabulary(server):
    """Out-of-bounds read: an id at or beyond the size of the vocabulary, in every field that takes ids."""
    for number in (49_152, 49_153, 2**31 - 1, 2**32 - 1, -1):
        cases = [("/v1/completions", {"prompt": [number]}), ("/v1/embeddings", {"input": [number]}), ("/detokenize", {"tokens": [number]})]
        cases += [
            (COMPLETIONS, {"prompt": "x", name: value}) for name, value in (("logit_bias", {str(number): 1}), ("stop_token_ids", [number]))
        ]
        for path, fields in cases:
            reply = server.post(path, {"model": MODEL, **fields})
            assert reply.status == 400, (path, fields, reply.status, reply.body[:200])


def test_incident_many_malicious_clients_at_once(server):
    """All of these attacks at once: if a bad request left anything behind, a later one would fail."""
    jobs = [
        (400, lambda: server.chat("x", regex="[")),
        (400, lambda: server.post(CHAT, b"{")),
        (400, lambda: server.complete([-1])),
        (400, lambda: server.complete("Hi", n=10**9)),
        (413, lambda: server.post(COMPLETIONS, gzip_bomb(64), headers={"content-encoding": "gzip"})),
        (404, lambda: server.complete(model="x" * 5000)),
    ]
    with ThreadPoolExecutor(8) as pool:
        statuses = [reply.status for reply in pool.map(lambda index: jobs[index % len(jobs)][1](), range(120))]
    assert statuses == [status for status, _ in jobs] * 20
    assert "panicked" not in Path(server.log.name).read_text()
    assert status_of(raw(server, b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")) == 200
