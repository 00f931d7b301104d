// Package differential holds Fairlead to kube-apiserver: both run side by side over the same backends, are asked the same questions, and must give the same answers,
// byte for byte. Its tests have the build tag e2e.
//
// What it is not: a test of what Fairlead does better; that is in tests/e2e.
package differential
