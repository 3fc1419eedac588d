"""issueflow: one written requirement, from analysis to a delivered branch, with coding-agent CLIs."""

__version__ = "0.1.0"
