package backend

import (
	"context"
	"net"
	"net/http"
	"net/http/httptrace"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
)

// The first look-up's end counts, which is of the server's name. Others are of an egress proxy's, and may end later.
func TestTimeToResolve(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, func(cfg *Config) {
			dial := cfg.Dial
			cfg.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
				for range 2 {
					time.Sleep(time.Second)
					httptrace.ContextClientTrace(ctx).DNSDone(httptrace.DNSDoneInfo{})
				}
				return dial(ctx, network, address)
			}
		})
		f.serve(place1, protoH1, nil)
		e := f.set(healthy(place1))
		_, _, err := f.do(e, http.MethodGet, "")
		must.Do(t, err)
		check.Same(t, uint64(time.Second), f.Upstream(e).meter.histograms[phaseResolve].sum.Load(), "nanoseconds until resolved")
	})
}
