// Package tokens authenticates bearer tokens without a cluster: those of a token file
// (--token-auth-file), and JWTs of the issuers in a structured authentication configuration
// (--authentication-config). k8s.io/apiserver's own code parses and verifies them.
//
// The caller watches the files, and passes their contents to TakeTokens and TakeConfig, at the
// start and after each change. The current state is immutable, behind atomic pointers; Run owns the
// issuers' goroutines and replaces the state.
package tokens
