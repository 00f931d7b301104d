//go:build unix

package front

import (
	"syscall"
	"testing"
)

// What the system allows is what there is.
func TestDescriptorLimit(t *testing.T) {
	var old syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &old); err != nil {
		t.Fatal(err)
	}
	lower := syscall.Rlimit{Cur: 333, Max: old.Max}
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &lower); err != nil {
		t.Fatal(err)
	}
	n := descriptorLimit()
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &old); err != nil {
		t.Fatal(err)
	}
	if n != 333 {
		t.Errorf("%d of 333", n)
	}
}
