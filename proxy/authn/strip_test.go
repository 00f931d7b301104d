package authn

import "testing"

// A configured name is stripped in every spelling, including that of its first byte.
func TestStripFirstByte(t *testing.T) {
	a := newAuthenticator(t, Config{RequestHeaders: HeaderNames{Username: []string{"-user"}, Group: []string{"7group"}, ExtraPrefix: []string{"zone-"}}})
	for name, want := range map[string]bool{
		"-user": true, "_user": true, "7group": true, "7Group": true, "Zone_x": true, "zone-": true,
		"": false, "user": false, "-": false, "-users": false, "7grou": false, "zone": false, "\xff": false,
	} {
		if got := a.Strip(name, PoolUnproven); got != want {
			t.Errorf("%q: %v", name, got)
		}
	}
}
