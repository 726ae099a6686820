"""Where the host waits for a device, or sends it data, between two log lines of a run, how often, and why.

The tests of this folder allow these places and no others, and each of them must occur. Hot functions of agents, acting
policies and steps of tensor environments have none at all. ``docs/devices.md`` shows this list.
"""

from __future__ import annotations

from typing import NamedTuple

from tests.accelerator import Event, Events, Kind


class Reason(NamedTuple):
    """Why an event is allowed."""

    often: str
    why: str


FOREIGN = "step of an environment that is not made of tensors"
ELSEWHERE = "fragment, if the environment is on another device"
LISTED: dict[tuple[Kind, str], Reason] = {
    ("read", "elegantrl/roles/group.py:find_nonfinite"): Reason("fragment", "does it hold a NaN or an infinity"),
    ("read", "elegantrl/roles/group.py:GroupActor.finished_episodes"): Reason(
        "fragment", "rewards and ends, for returns and lengths of episodes"
    ),
    ("read", "elegantrl/agents/on_policy.py:AgentOnPolicy.next_values"): Reason(
        "rollout", "the truncated steps: only their successors need another forward pass"
    ),
    ("read", "elegantrl/agents/h_term.py:HTerm.advantages"): Reason(
        "search of the H-term", "the truncated steps: only their successors need another forward pass"
    ),
    ("read", "elegantrl/agents/ppo.py:AgentPPO.should_stop"): Reason(
        "epoch, with `target_kl`", "is the policy too far"
    ),
    ("read", "elegantrl/agents/mod_sac.py:AgentModSAC.actor_is_due"): Reason(
        "16 updates of `mod_sac`", "the average loss, which decides how often the actor moves"
    ),
    ("read", "elegantrl/data/frames.py:FrameRing.add"): Reason("rollout with pictures", "which pictures are new"),
    ("read", "elegantrl/data/episodes.py:EpisodeRing.add"): Reason("rollout, `vdn` and `qmix`", "where episodes end"),
    ("upload", "elegantrl/data/episodes.py:EpisodeRing.add"): Reason("end of episodes", "how long open ones are"),
    ("upload", "elegantrl/data/episodes.py:EpisodeRing._places"): Reason("end of episodes", "which lanes ended"),
    ("upload", "elegantrl/data/episodes.py:EpisodeRing._close"): Reason("end of episodes", "their lengths"),
    ("read", "elegantrl/data/episodes.py:EpisodeRing.gather"): Reason(
        "update, `vdn` and `qmix`", "the longest episode of a batch, to which others are padded"
    ),
    ("upload", "elegantrl/tree.py:to"): Reason(ELSEWHERE, "its data go to the learner"),
    ("read", "elegantrl/nets/policies/spec.py:FlatPolicy.load"): Reason(ELSEWHERE, "new weights go to the policy"),
    ("read", "elegantrl/envs/spaces.py:ActionCodec._checked"): Reason(FOREIGN, "its actions"),
    ("upload", "elegantrl/envs/spaces.py:to_device"): Reason(FOREIGN, "what it returns"),
    ("read", "elegantrl/roles/evaluator.py:Evaluator.score"): Reason(
        "step of an evaluation", "have all episodes ended"
    ),
}


def unlisted(events: Events) -> list[Event]:
    """Events that are not allowed."""
    return [event for event in events if (event.kind, event.place) not in LISTED]
