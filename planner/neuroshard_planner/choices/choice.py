"""What all choices have in common."""

from typing import Protocol

from neuroshard_api.documents.plan import Plan


class Choice(Protocol):
    """A respect in which a request permits more than one form of its plan."""

    def decided(self, best: Plan) -> Plan:
        """Return the best plan so far, or a better one of another form; its request is of that form."""

    def written(self, plan: Plan) -> Plan:
        """Return the final plan with what was decided."""
