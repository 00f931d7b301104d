# Static binaries on a base without programs and libraries: nothing to patch but Fairlead itself.
FROM golang:1.26 AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
ARG VERSION=unknown
RUN CGO_ENABLED=0 go build -tags grpcnotrace -trimpath -buildvcs=false -ldflags "-s -w -X main.version=${VERSION}" -o /out/ ./cmd/fairlead ./cmd/kubectl-fairlead
# As in the image of make release.
RUN mkdir /licences && cp LICENSE /licences && \
    echo "linux $(go env GOARCH) ./cmd/fairlead ./cmd/kubectl-fairlead" | deploy/release/licences.sh >/licences/THIRD-PARTY-LICENSES

# distroless/static brings CA certificates, tzdata and a passwd with a nonroot user; no shell, no libc.
FROM gcr.io/distroless/static-debian12:nonroot
COPY --from=build /out/ /usr/local/bin/
COPY --from=build /licences/ /usr/share/doc/fairlead/
# 65532 by number, so that runAsNonRoot can be checked without reading passwd.
USER 65532:65532
# 6443 the front door, 6444 the admin port.
EXPOSE 6443 6444
ENTRYPOINT ["/usr/local/bin/fairlead"]
CMD ["serve"]
