"""hvd.DistributedGradientTape for every form of sources that tf.GradientTape takes.

Horovod 0.28.1 takes a list of variables. Here is what flattens other forms, asks it for the
gradients of a list in which no source comes twice, and gives them the form of the sources.
"""

from horovod.common import ringcoll_keras


def gradient(of_list, sources, use_generic_names, unconnected_gradients):
    """The reduced gradients, in the form of `sources`.

    of_list(variables, use_generic_names, unconnected_gradients) returns those of a list.
    """
    import tensorflow as tf

    if not isinstance(use_generic_names, bool):  # tf.GradientTape's fourth argument
        unconnected_gradients, use_generic_names = use_generic_names, False
    flat = [ringcoll_keras.native(source) for source in tf.nest.flatten(sources)]
    for source in flat:
        if not hasattr(source, "ref"):
            raise TypeError(
                f"sources has a {type(source).__name__}, and Horovod reduces gradients of "
                "variables and dense tensors alone: pass its components, such as ragged.flat_values"
            )
    once = {source.ref(): source for source in flat}
    gradients = of_list(list(once.values()), use_generic_names, unconnected_gradients)
    by_source = dict(zip(once, gradients, strict=True))
    return tf.nest.pack_sequence_as(sources, [by_source[source.ref()] for source in flat])


def in_groups(groups, variables, gradients):
    """(place, gradient) of what is to be reduced, in the user's groups, or one by one.

    A graph knows its variables by name alone. Which of several with one name goes with which group
    changes no result.
    """
    waiting = {}
    for place, (variable, gradient) in enumerate(zip(variables, gradients, strict=True)):
        if gradient is not None:
            waiting.setdefault(variable.name, []).append((place, gradient))
    found = [
        [waiting[variable.name].pop(0) for variable in group if waiting.get(variable.name)]
        for group in groups
    ]
    return found + [[one] for alike in waiting.values() for one in alike]


def pairs(sources, gradients):
    """Each source with its gradient, of sources in any form."""
    import tensorflow as tf

    return zip(tf.nest.flatten(sources), tf.nest.flatten(gradients), strict=True)
