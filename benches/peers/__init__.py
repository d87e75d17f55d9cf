"""One small adapter for each detokenizer."""

from peers import engines, floors, huggingface, ours, packages, python, wire
from peers.peer import Peer

ADAPTERS: dict[str, type[Peer]] = {
    adapter.name: adapter
    for module in (ours, huggingface, engines, packages, python, wire, floors)
    for adapter in module.ADAPTERS
}
