package proxy

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"testing"
	"time"
)

// A backend that begins its answer, reads no more of a large body and then hangs holds nobody
// beyond the deadline: net/http's HTTP/2 client waits for room to go on with the body, and does not
// look at the request's context meanwhile.
func TestDeadlineOfAnUpload(t *testing.T) {
	hang := func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusOK)
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	}
	w := newWorld(t, worldConfig{remote: hang})
	everyWay(t, func(t *testing.T, proto string) {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		r := w.as(t, "bob", "POST", remoteGV+"/widgets?timeout=300ms", bytes.NewReader(make([]byte, 3<<20))).WithContext(ctx)
		r.Header.Set("X-Unread", "yes")
		res, err := w.httpClient(t, proto, nil).Do(r)
		if err == nil {
			_, err = io.Copy(io.Discard, res.Body)
			res.Body.Close()
		}
		if err == nil || ctx.Err() != nil {
			t.Errorf("the answer ended with %v, %v", err, ctx.Err())
		}
	})
}
