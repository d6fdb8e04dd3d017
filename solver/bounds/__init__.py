"""Lower bounds on the time and the cost of a step: what nothing can beat.

Five bounds exist in the whole solver. Each file states what its bound holds for, and proves it.

1. *Of a plan* (``plans``): a fixed assignment of responses to actors. ``late_opening`` proves it for one kind of actors,
   ``sequences`` for several.
2. *Of any schedule* (``schedules``): responses may migrate, actors may be refilled and released. ``configurations`` makes it
   tighter with whole actors, ``drafts`` is that of schedules with speculative decoding.
3. *Of a whole step* (``solver.step``): generation, preparation and learning.
4. *Of layouts* (``solver.layouts``): model calls on meshes of GPUs.
5. *Of a pipeline* (``solver.pipeline``).

``solver.bound`` returns the first three. They are curves over time, with the same methods (``bound``).
"""
