package authn

import (
	"strings"
	"testing"

	"github.com/fairlead-proxy/fairlead/tests/check"
)

func TestCutProtocol(t *testing.T) {
	long := strings.Repeat("x", 2*len(bearerProtocol))
	for line, want := range map[string]string{
		"a, " + long:                             "a, " + long,
		long + ", " + protocolOf("good") + ", b": long + ",b",
		"a, " + bearerProtocol:                   "a",
	} {
		check.Same(t, want, CutProtocol(line), "%s", line)
	}
}

// A configured name is stripped in every spelling, including that of its first byte.
func TestStripFirstByte(t *testing.T) {
	a := newAuthenticator(t, Config{RequestHeaders: HeaderNames{Username: []string{"-user"}, UID: []string{"8id"}, Group: []string{"7group"}, ExtraPrefix: []string{"zone-"}}})
	for name, want := range map[string]bool{
		"-user": true, "_user": true, "7group": true, "7Group": true, "8ID": true, "Zone_x": true, "zone-": true,
		"": false, "user": false, "-": false, "-users": false, "7grou": false, "7groups": false, "8ids": false, "zone": false, "\xff": false,
	} {
		if got := a.Strip(name, PoolUnproven); got != want {
			t.Errorf("%q: %v", name, got)
		}
	}
}
