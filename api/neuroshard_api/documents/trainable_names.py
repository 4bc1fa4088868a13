"""Names that tables of NeuroShard's trainer cannot have: TorchRec keeps them in a ModuleDict, as torch's submodules."""

_NAMES = (
    "T_destination add_module apply bfloat16 buffers call_super_init children clear compile cpu cuda "
    "double dump_patches eval extra_repr float forward get_buffer get_extra_state get_parameter "
    "get_submodule half ipu items keys load_state_dict modules mtia named_buffers named_children "
    "named_modules named_parameters parameters pop register_backward_hook register_buffer "
    "register_forward_hook register_forward_pre_hook register_full_backward_hook "
    "register_full_backward_pre_hook register_load_state_dict_post_hook register_load_state_dict_pre_hook "
    "register_module register_parameter register_state_dict_post_hook register_state_dict_pre_hook "
    "requires_grad_ set_extra_state set_submodule share_memory state_dict to to_empty train training type "
    "update values xpu zero_grad"
)
MODULE_ATTRIBUTES = frozenset(_NAMES.split())
"""Of a torch.nn.ModuleDict, but private ones; a test compares them with torch's."""


def is_trainable_name(name: str) -> bool:
    """Return whether a table of this name can be trained."""
    return "." not in name and name not in MODULE_ATTRIBUTES


def why_not_trainable(name: str) -> str:
    """Return the reason and the remedy for a name that cannot be trained."""
    return (
        f"table {name!r} cannot be trained under this name: TorchRec keeps tables in a ModuleDict, whose keys have no "
        "dot and are none of its attributes; hint: rename the table, and give it featureNames with the data's name"
    )
