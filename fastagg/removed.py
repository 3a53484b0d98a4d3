"""What left the package, and what to use instead: names as they were written, commands, and words of
recipes. Kept for one release."""

_COMPARE = (
    "let fastagg.watch(server, times='times.csv') write how long your clients take, and compare rules on that: "
    '`fastagg compare RECIPES --set \'delay={name="measured",file="times.csv"}\'`; docs/choosing.md says which'
)
_EDGE = (
    "FLARE's own BuffModelManager adds up the updates of edge devices; a fastagg server that does the same is on "
    "docs/integrations/coming-from.md"
)
_MEMORY = "server.memory() says what a server holds, and docs/performance/scaling.md what ends first"
_PAPERS = ", a function of reproduction/ in fastagg's repository; a copy beside the recipe is found"

REMOVED: dict[str, str] = {
    "fastagg advise": _COMPARE,
    "fastagg plan": _MEMORY,
    "fastagg tune": "a table decides by the processor's vendor and family, `fastagg info` shows it, and "
    "FASTAGG_TUNE=prefetch=512,stream_from=never sets values of your own",
    "fastagg.Plan": _MEMORY,
    "fastagg.integrations.nvflare.AsyncCollab": "AsyncController trains asynchronously, with FLARE's ordinary clients",
    "fastagg.integrations.nvflare.EdgeModelManager": _EDGE,
    "fastagg.plan": _MEMORY,
    "fastagg.sim.advise": _COMPARE,
    'name = "cifar10"': 'write name = "cifar:cifar10"' + _PAPERS,
    'name = "cifar100"': 'write name = "cifar:cifar100"' + _PAPERS,
    'name = "femnist"': 'write name = "leaf:femnist"' + _PAPERS,
    'name = "femnist-cnn"': 'write name = "leaf:cnn"' + _PAPERS,
    'name = "glue"': 'write name = "texts:glue"' + _PAPERS,
    'name = "lstm"': 'write name = "shakespeare:NextCharacter"' + _PAPERS,
    'name = "mnist"': 'write name = "mnist:load"' + _PAPERS,
    'name = "newsgroups"': 'write name = "texts:newsgroups"' + _PAPERS,
    'name = "resnet18"': 'write name = "resnet:resnet18"' + _PAPERS,
    'name = "shakespeare"': 'write name = "shakespeare:load"' + _PAPERS,
    'name = "transformer"': 'write name = "transformer:classifier"' + _PAPERS,
}
