//go:build unix

package front

import (
	"syscall"
	"testing"

	"github.com/fairlead-proxy/fairlead/tests/must"
)

// descriptorLimit returns the process's RLIMIT_NOFILE.
func TestDescriptorLimit(t *testing.T) {
	var old syscall.Rlimit
	must.Do(t, syscall.Getrlimit(syscall.RLIMIT_NOFILE, &old))
	lower := syscall.Rlimit{Cur: 333, Max: old.Max}
	must.Do(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &lower))
	n := descriptorLimit()
	must.Do(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &old))
	if n != 333 {
		t.Errorf("%d of 333", n)
	}
}
