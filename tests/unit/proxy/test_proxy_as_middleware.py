"""The middleware's own tests, with the application behind the proxy: the same rules hold over HTTP."""

import sys

import pytest

from places import ROOT
from web.through_proxy import ThroughProxy, run

sys.path.append(str(ROOT / "tests" / "unit" / "web"))
import test_web_asgi as suite

# These look at what only an application in the same process has: ASGI's messages, its exceptions, the claim and the context.
_NOT_OVER_HTTP = [
    "test_a_body_in_small_chunks_takes_no_more_memory_than_in_large_ones",
    "test_a_claim_completed_with_what_is_no_answer_is_not_run_again",
    "test_a_handler_that_fails_after_its_request_was_cancelled_is_logged",
    "test_a_handler_whose_request_is_cancelled_goes_on_and_is_recorded",
    "test_a_request_cancelled_while_it_waits_for_another_runs_nothing",
    "test_a_stream_whose_claim_was_lost_is_broken_off",
    "test_a_streamed_answer_goes_as_it_comes_but_for_its_end",
    "test_an_answer_is_recorded_though_its_framework_cancels_it_at_the_end",
    "test_an_answer_is_recorded_though_its_frameworks_time_is_over",
    "test_an_answer_that_cannot_be_recorded_is_sent_and_its_key_stays_held",
    "test_an_answer_that_came_after_its_claim_was_lost_is_not_sent",
    "test_an_answer_that_commits_with_its_effect_is_replayed",
    "test_an_exception_amid_an_answer_breaks_it_off_and_gives_the_key_back",
    "test_an_exception_gives_the_key_back_and_goes_on",
    "test_an_answer_shorter_than_its_content_length_is_not_replayed_as_a_whole_one",
    "test_answer_begun_and_not_yet_sent_is_dropped_when_its_handler_fails",
    "test_background_work_begins_when_the_answer_is_recorded_and_sent",
    "test_extensions_that_go_past_the_messages_are_not_offered",
    "test_header_lines_that_can_be_read_only_once_reach_the_application",
    "test_messages_out_of_their_order_are_left_to_the_server",
    "test_no_answer_at_all_gives_the_key_back_and_half_of_one_completes_it",
    "test_nobody_has_a_whole_answer_before_it_is_recorded",
    "test_the_chunk_that_completes_the_length_is_the_end",
    "test_the_claim_is_at_hand_in_the_application_and_not_after_it",
    "test_what_carries_no_key_reaches_the_application_as_it_is",
    "test_what_the_application_sets_in_its_context_is_seen_outside",
]

once = suite.once  # the fixture
globals().update(
    {name: test for name, test in vars(suite).items() if name.startswith("test_") and name not in _NOT_OVER_HTTP}
)


@pytest.fixture(autouse=True)
def behind_the_proxy(monkeypatch):
    monkeypatch.setattr(suite, "AsgiIdempotency", ThroughProxy)
    monkeypatch.setattr(suite, "run", run)


def test_the_tests_that_are_left_out_are_still_there():
    assert not [name for name in _NOT_OVER_HTTP if not hasattr(suite, name)]
