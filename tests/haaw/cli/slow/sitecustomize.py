"""Loaded by a `haaw` of its own process: slows its steps down, so that a signal can meet one under way."""

import os
import sys
import time


class _Slow:
    def find_spec(self, name, path=None, target=None):
        if name != "haaw.generation.engine":
            return None
        sys.meta_path.remove(self)
        import importlib.util

        spec = importlib.util.find_spec(name)
        load = spec.loader.exec_module

        def exec_module(module):
            load(module)
            advance, steps = module.advance, []

            def slow(*args, **kwargs):
                steps.append(1)
                if len(steps) == 3 and os.environ.get("HAAW_TEST_TELL"):
                    print("step 3", file=sys.stderr, flush=True)
                time.sleep(0.05)
                return advance(*args, **kwargs)

            module.advance = slow

        spec.loader.exec_module = exec_module
        return spec


sys.meta_path.insert(0, _Slow())
