// Package e2e runs Fairlead in front of the real etcd, kube-apiserver, kube-controller-manager and
// extension servers, and talks to it the way its users do: through kubectl and client-go with only
// the server address changed.
//
// The tests are behind the build tag e2e because they need the parts that `go run
// ./tests/tools/build` builds. `make e2e` counts the cases that ran: fewer than the number in the
// file COUNT is a failure, so a case cannot go missing unseen.
package e2e
