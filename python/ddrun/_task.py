"""What a task is: a pickled function and its arguments, made by the caller and called by a rank, and what comes back."""

import io
import os
import pickle
import sys
import traceback


def payload(function, *args, **kwargs):
    """In the caller: the call function(*args, **kwargs) for `perform`."""
    try:
        import cloudpickle
    except ImportError as error:  # users of the program alone do not need it
        raise ImportError("calls of ranks need cloudpickle: pip install 'ddrun[python]'") from error

    return cloudpickle.dumps((function, args, kwargs))


def perform(payload):
    """In a rank: calls the function."""
    function, args, kwargs = pickle.loads(payload)
    share_namespace(function)
    return function(*args, **kwargs)


def share_namespace(function):
    """A function of the caller's __main__ sees what Group.put and cells have set, unless it has such a global itself."""
    code, globals_ = getattr(function, "__code__", None), getattr(function, "__globals__", {})
    if code and function.__module__ == "__main__":
        space = vars(sys.modules["__main__"])
        globals_.update({name: space[name] for name in code.co_names if name in space and name not in globals_})


def dumps(value):
    """In a rank: a value for the caller. Tensors of devices come as those of the CPU: unpickling them would initialize CUDA in the caller."""
    torch = sys.modules.get("torch")

    import cloudpickle

    class Pickler(cloudpickle.Pickler):
        def reducer_override(self, obj):
            if torch and type(obj) is torch.Tensor and obj.device.type not in ("cpu", "meta"):
                return obj.detach().cpu().requires_grad_(obj.requires_grad).__reduce_ex__(2)
            return super().reducer_override(obj)

    file = io.BytesIO()
    Pickler(file).dump(value)
    return file.getvalue()


def describe(error):
    """The exception (pickled, None if that fails), its one-line summary, its traceback without frames of this package."""
    trace, package = error.__traceback__, os.path.dirname(__file__)
    while trace and os.path.dirname(trace.tb_frame.f_code.co_filename) == package:
        trace = trace.tb_next
    text = getattr(error, "ddrun_traceback", None) or "".join(traceback.format_exception(type(error), error, trace))
    summary = "".join(traceback.format_exception_only(type(error), error)).strip()
    try:
        pickled = dumps(error)
    except Exception:
        pickled = None
    return pickled, summary, text


def put(values):
    vars(sys.modules["__main__"]).update(values)


def pull(name):
    return eval(name, vars(sys.modules["__main__"]))
