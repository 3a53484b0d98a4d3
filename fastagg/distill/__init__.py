"""FedEcho's distillation on the server: the unlabelled data, the clients' logits for these data, and the student. Only
:class:`fastagg.rules.directions.Echo` runs it."""

from fastagg.distill.settings import Distillation
from fastagg.distill.student import Student
from fastagg.distill.teachers import Teachers

__all__ = ["Distillation", "Student", "Teachers"]
