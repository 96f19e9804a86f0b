"""The debugger of a rank: what it says is shown by the caller, whose input are its commands."""

import linecache
import pdb
import sys


class Debugger(pdb.Pdb):
    def __init__(self, rank):
        self.rank, self.said = rank, ""
        super().__init__(stdin=self, stdout=self, nosigint=True, readrc=False, skip=["ddrun._*"])

    def canonic(self, filename):
        """Cells are no files."""
        return filename if filename.startswith("Cell In[") and filename in linecache.cache else super().canonic(filename)

    def write(self, text):
        self.said += text

    def flush(self):
        pass

    def readline(self):
        text, self.said = self.said, ""
        line = self.rank.ask("debug", text)
        return "" if line is None else line + "\n"

    def get_stack(self, frame, traceback):
        """Without the frames through which a task came."""
        stack, index = super().get_stack(frame, traceback)
        outer = [number for number, (frame, _) in enumerate(stack) if is_outer(frame)]
        first = min(outer[-1] + 1 if outer else 0, index)
        return stack[first:], index - first

    def user_return(self, frame, value):
        super().user_return(frame, value)
        if is_outer(frame.f_back) and not self.quitting:  # a step leads to the end of the task
            self.set_continue()

    def post_mortem(self, traceback):
        """Asks about the innermost frame. Returns whether the user quits."""
        self.reset()
        self.interaction(None, traceback)
        quits = self.quitting
        self.set_continue()
        return quits

    def end(self):
        """Of the task: a step may have led out of it. Frees frames; those below have this object as their trace function."""
        sys.settrace(None)
        vars(self).clear()

    def _cmdloop(self):
        self.cmdloop()  # that of Pdb asks again after an interrupt

    def set_continue(self):
        super().set_continue()
        self.rank.tell("continue", None)  # another rank may ask


def is_outer(frame):
    return frame.f_globals.get("__name__", "").startswith(("ddrun._", "IPython.", "_pytest.", "pluggy."))
