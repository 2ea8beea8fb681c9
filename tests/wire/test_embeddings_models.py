"""Compares embedding models, from text to vector, with sentence-transformers (`tests/golden/make_embeddings.py`), and tests WordPiece
vocabularies over HTTP."""

import gzip
import json

import numpy as np
import pytest
from harness import ROOT, Server
from tiny import write_layout

LAYOUTS = [json.loads(line) for line in gzip.decompress((ROOT / "tests/golden/embeddings.jsonl.gz").read_bytes()).splitlines()]
EMBEDDERS = {layout["name"]: layout for layout in LAYOUTS if "vectors" in layout}
(RANKER,) = (layout["name"] for layout in LAYOUTS if "scores" in layout)
BERT = "bert-mean"
# A decoder that was trained to embed text.
DECODER = "qwen3-last"


@pytest.fixture(scope="module")
def zoo(tmp_path_factory):
    folder = tmp_path_factory.mktemp("embeddings")
    config = f"[server]\ndefault_models = {json.dumps([layout['name'] for layout in LAYOUTS])}\n"
    for layout in LAYOUTS:
        path = folder / f"{layout['name']}.gguf"
        write_layout(path, layout)
        config += f'[[models]]\nid = "{layout["name"]}"\nsource = {{ type = "file", path = "{path}" }}\n'
        if layout["name"] == DECODER:
            # Embedding models often keep the template of the generative model that they were trained from.
            (folder / "chat.jinja").write_text("{% for m in messages %}{{ m.content }}{% endfor %}")
            config += f'chat_template = "{folder}/chat.jinja"\n'
    (folder / "config.toml").write_text(config)
    with Server({"ENGINE__BACKEND": "cpu"}, ("--config", str(folder / "config.toml"))) as server:
        yield server


def ids(server, text, model=BERT, **fields):
    reply = server.post("/tokenize", {"model": model, "prompt": text, **fields})
    assert reply.status == 200, reply.body
    return reply.json()["tokens"]


@pytest.mark.parametrize("name", EMBEDDERS)
def test_texts_have_the_ids_and_vectors_of_sentence_transformers(zoo, name):
    layout = EMBEDDERS[name]
    assert [ids(zoo, text, name) for text in layout["texts"]] == layout["ids"]
    reply = zoo.post("/v1/embeddings", {"model": name, "input": layout["texts"]})
    assert reply.status == 200, reply.body
    answer = reply.json()
    assert answer["usage"]["prompt_tokens"] == sum(map(len, layout["ids"]))
    got, want = np.array([item["embedding"] for item in answer["data"]]), np.array(layout["vectors"])
    assert np.abs(np.linalg.norm(got, axis=1) - 1).max() < 1e-5
    cosines = (got * want).sum(1) / np.linalg.norm(want, axis=1)
    print(name, "1 - cosine:", (1 - cosines).max())
    assert cosines.min() >= 0.99999, cosines
    by_ids = zoo.post("/v1/embeddings", {"model": name, "input": layout["ids"]}).json()
    assert [item["embedding"] for item in by_ids["data"]] == got.tolist()


def test_word_pieces_are_counted_decoded_and_named(zoo):
    text = "The gate opens, and water RUNS."
    whole, bare = ids(zoo, text), ids(zoo, text, add_special_tokens=False)
    special = {name: ids(zoo, name, add_special_tokens=False) for name in ("[CLS]", "[SEP]", "[MASK]")}
    assert whole == special["[CLS]"] + bare + special["[SEP]"] and all(len(one) == 1 for one in special.values())
    detokenized = zoo.post("/detokenize", {"model": BERT, "tokens": bare}).json()
    assert detokenized["prompt"] == "the gate opens, and water runs."
    assert ids(zoo, "the [MASK] opens", add_special_tokens=False)[1] == special["[MASK]"][0]
    assert ids(zoo, "[mask]", add_special_tokens=False) != special["[MASK]"]


def test_a_model_that_ranks_has_no_embeddings_and_an_encoder_writes_no_text(zoo):
    ranks = zoo.post("/v1/embeddings", {"model": RANKER, "input": "a"})
    assert ranks.status == 400 and ranks.error["param"] == "model" and "ranks" in ranks.error["message"]
    writes = zoo.post("/v1/completions", {"model": BERT, "prompt": "a"})
    assert writes.status == 400 and writes.error["param"] == "model"


def test_a_text_that_is_longer_than_the_model_was_made_for_is_refused(zoo):
    reply = zoo.post("/v1/embeddings", {"model": BERT, "input": "the " * 255})
    assert reply.status == 400 and reply.error["code"] == "context_length_exceeded"
    assert zoo.post("/v1/embeddings", {"model": BERT, "input": "the " * 254}).status == 200
    long_word = zoo.post("/v1/embeddings", {"model": BERT, "input": "a" * 100_000})
    assert long_word.status == 200 and long_word.json()["usage"]["prompt_tokens"] == 3, "one unknown token"
    nothing = zoo.post("/v1/embeddings", {"model": BERT, "input": "\u200b"})
    assert nothing.status == 200 and nothing.json()["usage"]["prompt_tokens"] == 2


def test_an_input_is_cut_to_its_beginning(zoo):
    def embed(text, **fields):
        return zoo.post("/v1/embeddings", {"model": BERT, "input": text, **fields})

    long = "the gate opens " * 5000
    assert "context" in embed(long).error["message"]
    most = embed(long, truncate_prompt_tokens=-1).json()["usage"]["prompt_tokens"]
    short = embed("the gate opens").json()
    count = short["usage"]["prompt_tokens"]
    assert most > count and embed(long, truncate_prompt_tokens=count).json()["data"] == short["data"]
    assert embed(ids(zoo, long), truncate_prompt_tokens=5).json()["usage"]["prompt_tokens"] == 5
    assert embed("a", truncate_prompt_tokens=0).error["param"] == "truncate_prompt_tokens"
