"""The switch of thinking, as a request holds it.

What enters: a profile and a wish. What leaves: fields for the body of a request. It promises that
a wish which the model family can not meet is refused, never sent in vain: servers ignore a switch
that the template does not read.
"""

from __future__ import annotations

from typing import Any

from eagle3_data.profiles.profile import Profile, Thinking


class SwitchFault(ValueError):
    """The model family has no such switch; the message says what to do."""


def switch(profile: Profile, on: bool | None) -> dict[str, Any]:
    """Fields of the request that turn thinking on or off; none when nothing is wished or the
    family is so anyway. Raises SwitchFault.
    """
    if on is None or profile.thinking is (Thinking.ALWAYS if on else Thinking.NEVER):
        return {}
    if profile.switch is None:
        wish = "on" if on else "off"
        raise SwitchFault(
            f"the profile {profile.name} knows no switch that turns thinking {wish}: leave"
            " --thinking out, send the model's own with --extra-body, or name another --profile"
        )
    value = profile.switch.on if on else profile.switch.off
    return {"chat_template_kwargs": {profile.switch.key: value}}
