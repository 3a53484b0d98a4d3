"""FedEcho's server-side distillation: unlabelled data, the clients' logits on it, and the student."""

from fastagg.distill.settings import Distillation
from fastagg.distill.student import Student
from fastagg.distill.teachers import Teachers

__all__ = ["Distillation", "Student", "Teachers"]
