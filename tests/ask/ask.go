// Package ask asks a server something and reads the whole answer.
package ask

import (
	"context"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"strings"
)

// Reply is an answer that was read to its end.
type Reply struct {
	// Code, Header and Body are what was answered.
	Code   int
	Header http.Header
	Body   string
}

// Do sends a request and returns what was answered. An empty body is none, and so is a nil
// header; a body is JSON unless the header says otherwise.
func Do(ctx context.Context, c *http.Client, method, url string, header http.Header, body string) (Reply, error) {
	req, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		return Reply{}, err
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	maps.Copy(req.Header, header)
	res, err := c.Do(req)
	if err != nil {
		return Reply{}, err
	}
	defer func() { _ = res.Body.Close() }()
	text, err := io.ReadAll(res.Body)
	return Reply{res.StatusCode, res.Header, string(text)}, err
}

// JSON reads what a server of this machine without TLS has there.
func JSON(ctx context.Context, url string, into any) error {
	r, err := Do(ctx, new(http.Client), http.MethodGet, url, nil, "")
	if err != nil {
		return err
	}
	return json.Unmarshal([]byte(r.Body), into)
}
