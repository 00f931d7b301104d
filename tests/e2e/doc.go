// Package e2e runs Fairlead in front of the real etcd, kube-apiserver, kube-controller-manager and extension servers,
// and uses it as its users do: with kubectl and client-go, changing only the server's address.
//
// The tests have the build tag e2e because they need the programs that `go run ./tests/tools/build` builds. `make e2e`
// fails if fewer cases ran than the number in the file COUNT, so that no case can go missing unnoticed.
package e2e
