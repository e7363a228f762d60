// Where the definitions of other projects' kinds come from. No Go is compiled: the modules have the files, go.sum their
// checksums.
module vcuda.invalid/tests/definitions

go 1.26.0

require (
	github.com/cert-manager/cert-manager v1.21.2
	github.com/openshift/api v0.0.0-20251020135558-286504b695bc
	github.com/prometheus-operator/prometheus-operator v0.85.0
)
