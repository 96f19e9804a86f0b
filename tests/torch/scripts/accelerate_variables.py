"""Prints, as JSON, what accelerate launch makes of its configuration: the keys of its class, and for each option the
variables that differ with another value of it."""
import contextlib
import dataclasses
import io
import json
import os

from accelerate.commands import launch as command
from accelerate.commands.config.config_args import ClusterConfig
from accelerate.utils import launch

# The kinds of a start; each sets variables for its own options.
KINDS = {"fsdp": ["--use_fsdp", "--fsdp_version=2", "--use_parallelism_config"], "megatron": ["--use_megatron_lm"],
         "deepspeed": ["--use_deepspeed"], "fp8": ["--mixed_precision=fp8"], "cpu": []}
OTHER = {"int": "7", "float": "0.5"}
# Set only with another.
WITH = {"parallelism_config_cp_comm_strategy": ["--parallelism_config_cp_size=2"],
        **{f"parallelism_config_sp_{name}": ["--parallelism_config_sp_size=2"]
           for name in ("seq_length", "seq_length_is_variable", "attn_implementation")}}
launch.is_fp8_available = lambda: True
launch.is_port_in_use = lambda port: False


def environment(kind, options):
    args = command.launch_command_parser().parse_args([*KINDS[kind], *options, "--num_processes=2", "--num_machines=1", "train.py"])
    args = command._validate_launch_command(args)[0]
    args.use_cpu = args.cpu
    args.deepspeed_fields_from_accelerate_config = ""
    if kind == "cpu":
        return launch.prepare_simple_launcher_cmd_env(args)[1]
    if kind == "deepspeed":
        return launch.prepare_deepspeed_cmd_env(args)[1]
    return launch.prepare_multi_gpu_env(args)


def other_value(action):
    """A value of an option that is not its default, as words of a command line."""
    option = action.option_strings[-1]
    if action.nargs == 0:
        return [option]
    if action.dest == "fp8_override_linear_precision":
        return [f"{option}=abc"]
    values = [*(action.choices or ()), OTHER.get(getattr(action.type, "__name__", ""), "")]
    if not action.choices and not values[-1]:
        values = ["false", "true"] if str(action.default).lower() in ("true", "false") else ["other"]
    return [f"{option}={next(value for value in values if str(value).lower() != str(action.default).lower())}"]


changes = {}
with contextlib.redirect_stderr(io.StringIO()):
    for action in command.launch_command_parser()._actions:
        for kind in KINDS:
            if not action.option_strings or action.dest in ("help", "config_file", "num_processes", "num_machines", "module", "no_python") \
                    or any(word.startswith(action.option_strings[-1]) for word in KINDS[kind]) and kind != "fsdp":
                continue
            with contextlib.suppress(Exception, SystemExit):  # not with this kind
                more = WITH.get(action.dest, [])
                before, after = environment(kind, more), environment(kind, [*more, *other_value(action)])
                names = {name for name in {*before, *after} if before.get(name) != after.get(name)}
                changes.setdefault(action.dest, set()).update(names)
            changes.setdefault(action.dest, set())
print(json.dumps({"keys": [field.name for field in dataclasses.fields(ClusterConfig)],
                  "changes": {key: sorted(names) for key, names in changes.items()},
                  "kinds": {kind: sorted(name for name, value in environment(kind, []).items() if os.environ.get(name) != value)
                            for kind in KINDS}}))
