"""The chat page with a model that reads pictures, from the attached file to the answer."""

import pytest
from chat_page import ask, finished, needs_browser
from harness import Server, wait_until
from test_pictures import encoded
from tiny_vision import picture, write_seeing

pytestmark = needs_browser


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with Server({"ENGINE__BACKEND": "cpu"}, ("--config", write_seeing(tmp_path_factory.mktemp("sees")))) as server:
        yield server


def test_a_picture_is_attached_answered_and_asked_about_again(server, open_page):
    page = open_page()
    file = {"name": "a.png", "mimeType": "image/png", "buffer": picture(112, 112)}
    page.set_input_files("#pick", [file])
    wait_until(lambda: page.locator("#files li").count() == 1, 10, "the picture is read")
    ask(page, "What is it?")
    finished(page)
    assert encoded(server) == {"eyes": 1}
    page.reload()
    page.wait_for_selector("#model:enabled")
    page.wait_for_selector(".thumbnail")
    ask(page, "And where?")
    finished(page)
    assert encoded(server) == {"eyes": 1}, "the picture of the first question is not encoded again"
