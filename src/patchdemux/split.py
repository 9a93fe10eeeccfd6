"""A classifier cut in two at one of its layers: what comes up to the cut, and what comes after."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, fx, nn

from patchdemux.classifier import Classifier
from patchdemux.engine import running


@dataclass(frozen=True, eq=False)
class Split:
    """The two parts of a classifier; `back(front(images))` is what the classifier computes.

    Attributes:
        layer: the name of the layer whose output is the cut, within the classifier's model.
        front: from images in [0, 1] to the output of the layer, normalisation included.
        back: from there to the logits.
    """

    layer: str
    front: Callable[[Tensor], Tensor]
    back: Callable[[Tensor], Tensor]


def split(classifier: Classifier, layer: str) -> Split:
    """Cut a classifier after a layer, by tracing its computation with `torch.fx`.

    Only the modules that hold the layer are traced, the others stay as they are. Both parts share the
    weights of the classifier, and are made for eval mode.

    Args:
        classifier: a torch module in float32, run by PyTorch itself.
        layer: its name as in `model.named_modules()`, such as "layer1" of a ResNet, "blocks.1" of an
            EfficientNet, or "3" of an `nn.Sequential`.
    """
    model = classifier.model
    if not isinstance(model, nn.Module):
        raise ValueError(
            f"only a torch module can be cut at a layer, but the model is a {type(model).__name__}"
        )
    if classifier.runtime != "torch" or classifier.precision != "float32":
        raise ValueError(
            f"a part of a model is run by torch in float32, but this classifier is run by "
            f"{classifier.runtime} in {classifier.precision}"
        )
    if type(classifier).forward is not Classifier.forward:
        raise ValueError(
            f"a {type(classifier).__name__} has a forward of its own, and cannot be cut at a layer"
        )
    if not layer or layer not in dict(model.named_modules()):
        names = ", ".join(name for name, _ in model.named_children())
        raise ValueError(f"the model has no layer {layer!r}; it has {names} and what they hold")
    target = f"model.{layer}"
    try:
        with running(classifier):
            graph = _Tracer(target).trace(classifier)
    except (TypeError, ValueError, RuntimeError, fx.proxy.TraceError) as error:
        raise ValueError(
            f"the model cannot be cut after {layer!r}, since torch.fx cannot trace what holds it "
            f"({error}); make it an nn.Sequential of two parts"
        ) from error
    cuts = [node for node in graph.nodes if node.target == target]
    if len(cuts) != 1:
        raise ValueError(
            f"the model cannot be cut after {layer!r}, which is used {len(cuts)} times in one pass"
        )
    return Split(layer, _front(classifier, graph, target), _back(classifier, graph, target))


class _Tracer(fx.Tracer):
    """Looks into the modules that hold a layer, and into no other."""

    def __init__(self, target: str) -> None:
        super().__init__()
        self.target = target
        self.traced_func_name = Classifier.compute.__name__

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return not self.target.startswith(f"{module_qualified_name}.")


def _front(classifier: Classifier, graph: fx.Graph, target: str) -> fx.GraphModule:
    """What comes up to the cut."""
    part = _copy(classifier, graph)
    nodes = {node.target: node for node in part.graph.nodes}
    nodes["output"].args = (nodes[target],)
    return _cleaned(part)


def _back(classifier: Classifier, graph: fx.Graph, target: str) -> fx.GraphModule:
    """What comes after the cut, which must be all that it needs."""
    part = _copy(classifier, graph)
    cut = next(node for node in part.graph.nodes if node.target == target)
    with part.graph.inserting_before(cut):
        features = part.graph.placeholder("features")
    cut.replace_all_uses_with(features)
    part = _cleaned(part)
    images = next(node for node in part.graph.nodes if node.op == "placeholder")
    if images.users:
        raise ValueError(
            f"the model cannot be cut after {target.removeprefix('model.')!r}: what comes after it "
            f"also takes what comes before it, around the cut"
        )
    part.graph.erase_node(images)
    part.recompile()
    return part


def _copy(classifier: Classifier, graph: fx.Graph) -> fx.GraphModule:
    """The whole graph, with the classifier's own submodules."""
    own = fx.Graph()
    own.output(own.graph_copy(graph, {}))
    return fx.GraphModule(classifier, own)


def _cleaned(part: fx.GraphModule) -> fx.GraphModule:
    """The same without what its output does not need."""
    part.graph.eliminate_dead_code()
    part.delete_all_unused_submodules()
    part.recompile()
    return part
