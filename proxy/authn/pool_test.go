package authn

import (
	"testing"
	"testing/synctest"
	"time"
)

// A token in use stays proven: after half of its minute, a use renews it.
func TestProvenTokenIsRenewed(t *testing.T) {
	for used, want := range map[time.Duration]bool{29 * time.Second: false, 31 * time.Second: true, 40 * time.Second: true} {
		synctest.Test(t, func(t *testing.T) {
			a := newAuthenticator(t, Config{Review: newTokens().review})
			c := credentials(a, "good")
			a.Seen(c, 200)
			time.Sleep(used)
			a.Seen(c, 200)
			time.Sleep(61*time.Second - used)
			if got := a.Proven(c.Token); got != want {
				t.Errorf("used after %v: proven a minute later: %v", used, got)
			}
		})
	}
}
