package extension

import (
	"net/http"
	"slices"
)

// connect answers a connect subresource: it echoes the body.
func connect(w http.ResponseWriter, r *http.Request, subresource string) {
	if !slices.Contains(connectSubresources(), subresource) {
		writeStatus(w, http.StatusNotFound, "no such subresource")
		return
	}
	echo(w, r)
}

// echo streams the body and its trailers back.
func echo(w http.ResponseWriter, r *http.Request) {
	controller := http.NewResponseController(w)
	_ = controller.EnableFullDuplex() // HTTP/1.1 reads the whole body first by default; HTTP/2 does not support this, or need it
	w.Header().Set("Content-Type", "application/octet-stream")
	buf := make([]byte, 32<<10)
	for {
		n, err := r.Body.Read(buf)
		if n > 0 {
			if _, err := w.Write(buf[:n]); err != nil {
				return
			}
			_ = controller.Flush()
		}
		if err != nil {
			break
		}
	}
	for name, values := range r.Trailer {
		for _, v := range values {
			w.Header().Add(http.TrailerPrefix+name, v)
		}
	}
}
