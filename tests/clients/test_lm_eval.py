"""Tests EleutherAI's evaluation harness, which computes log-likelihoods through completions, on the tasks in tasks/."""

import json
import math
import urllib.request

import pytest
from harness import ROOT
from lm_eval import simple_evaluate
from lm_eval.tasks import TaskManager


@pytest.fixture
def evaluate(url, model, monkeypatch):
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")

    def run(task, **more):
        arguments = {"model": model, "base_url": f"{url}/completions", "max_retries": 1} | more
        tasks = TaskManager(include_path=str(ROOT / "tests" / "clients" / "tasks"), include_defaults=False)
        return simple_evaluate(
            "local-completions", model_args=arguments, tasks=[task], task_manager=tasks, log_samples=True, bootstrap_iters=0
        )

    return run


def log_likelihood(url, model, prompt, answer):
    """Asks the server directly: the sum over the answer's tokens, and whether each token was the likeliest."""
    body = {"model": model, "prompt": prompt + answer, "max_tokens": 0, "echo": True, "logprobs": 1}
    request = urllib.request.Request(f"{url}/completions", json.dumps(body).encode(), {"content-type": "application/json"})
    told = json.load(urllib.request.urlopen(request, timeout=60))["choices"][0]["logprobs"]
    first = told["text_offset"].index(len(prompt))
    each = told["token_logprobs"][first:]
    return sum(each), all(value == max(top.values()) for value, top in zip(each, told["top_logprobs"][first:]))


@pytest.mark.parametrize("batch", [1, 4])
def test_choices_are_scored_by_log_likelihood(evaluate, url, model, batch):
    found = evaluate("capitals", batch_size=batch)
    assert found["results"]["capitals"]["acc,none"] >= 5 / 6
    (first, *_) = sorted(found["samples"]["capitals"], key=lambda sample: sample["doc_id"])
    for city, ((likelihood, greedy),) in zip(first["doc"]["cities"], first["resps"], strict=True):
        expected = log_likelihood(url, model, "The capital of France is", f" {city}")
        assert (likelihood, greedy) == (pytest.approx(expected[0], abs=1e-4), expected[1])
    assert [greedy for ((_, greedy),) in first["resps"]] == [True, False, False]


def test_a_plausible_text_is_likelier_than_its_reverse(evaluate):
    samples = evaluate("rivers")["samples"]["rivers"]
    (english,), (backwards,) = [sample["filtered_resps"] for sample in sorted(samples, key=lambda sample: sample["doc_id"])]
    assert math.isfinite(english) and backwards < 2 * english < 0, "the text is much likelier with its words in order"
