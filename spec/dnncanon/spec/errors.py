"""The errors that every room raises: a message names the constraint, the offending values and the remedy."""


class SpecError(Exception):
    """A call that the specification does not allow.

    ``constraint`` is the label of the violated rule, such as ``conv_forward C3``; it also opens the message.
    """

    def __init__(self, message: str, constraint: str = "") -> None:
        super().__init__(f"{constraint}: {message}" if constraint else message)
        self.constraint = constraint


class ShapeError(SpecError, ValueError):
    """Ranks or extents that do not fit together."""


class DTypeError(SpecError, TypeError):
    """Element types that the primitive does not have, or that may not be mixed."""


class AttributeValueError(SpecError, ValueError):
    """An attribute outside its domain."""


class LayoutError(SpecError, ValueError):
    """Strides that an output cannot have: negative, or two elements at one address."""


class MissingTensorError(SpecError, TypeError):
    """A required tensor is absent, or something is not a tensor."""


class Unsupported(NotImplementedError):
    """Legal by the specification, but not offered by this backend."""
