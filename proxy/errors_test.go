package proxy

import (
	"errors"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/fairlead-proxy/fairlead/proxy/h2"
)

// A client is only told to repeat what no backend has executed.
func TestFrameFailures(t *testing.T) {
	for reason, want := range map[h2.Reason]struct {
		code       int32
		message    string
		retryAfter int32
	}{
		h2.ReasonNoEndpoint:  {503, "could not be reached", 1},
		h2.ReasonDial:        {503, "could not be reached", 1},
		h2.ReasonRefused:     {503, "takes no further requests", 1},
		h2.ReasonBusy:        {503, "takes no further requests", 1},
		h2.ReasonReset:       {503, "ended the connection", 0},
		h2.ReasonLost:        {503, "ended the connection", 0},
		h2.ReasonBadResponse: {502, "cannot be understood", 0},
		h2.ReasonDeadline:    {504, "did not answer", 0},
		h2.ReasonDrain:       {503, "ended the connection", 0},
		h2.ReasonClientReset: {503, "ended the connection", 0},
	} {
		var status *apierrors.StatusError
		if !errors.As(forwardError("v1.a", frameError(h2.Outcome{Reason: reason})), &status) {
			t.Fatalf("%s: no status", reason)
		}
		s, retryAfter := status.ErrStatus, int32(0)
		if s.Details != nil {
			retryAfter = s.Details.RetryAfterSeconds
		}
		if s.Code != want.code || !strings.Contains(s.Message, want.message) || retryAfter != want.retryAfter {
			t.Errorf("%s: %+v", reason, s)
		}
	}
}
